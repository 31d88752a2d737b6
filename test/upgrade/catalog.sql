-- What the catalogs say of the extension, a line for each fact, without OIDs; rights that
-- are not written down are those that an owner has. Two
-- databases that have the same version say the same, however they came to it. The
-- partitions of the archive are named by their days, and are not listed.
WITH members AS (
    SELECT d.classid, d.objid
      FROM pg_depend d
      JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
     WHERE e.extname = 'outbox' AND d.deptype = 'e'
), relations AS (
    SELECT c.*
      FROM pg_class c
     WHERE c.oid IN (SELECT objid FROM members WHERE classid = 'pg_class'::regclass)
        OR c.oid IN (SELECT i.indexrelid FROM pg_index i
                      JOIN members m ON m.classid = 'pg_class'::regclass AND m.objid = i.indrelid)
), facts AS (
    SELECT 'member: ' || pg_describe_object(classid, objid, 0) AS fact FROM members
    UNION ALL
    SELECT format('relation %s: kind %s, persistence %s, options %s, replica %s, rls %s, rights %s, comment %s',
                  c.oid::regclass, c.relkind, c.relpersistence, c.reloptions, c.relreplident, c.relrowsecurity,
                  (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))) a),
                  obj_description(c.oid, 'pg_class'))
      FROM relations c
    UNION ALL
    SELECT format('column %s.%s: %s, place %s, type %s, not null %s, default %s, storage %s, compression %s, statistics %s, rights %s, comment %s',
                  c.oid::regclass, a.attname, c.relkind,
                  (SELECT count(*) FROM pg_attribute b
                    WHERE b.attrelid = a.attrelid AND b.attnum BETWEEN 1 AND a.attnum AND NOT b.attisdropped),
                  format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
                  a.attstorage, a.attcompression, coalesce(a.attstattarget, -1),
                  (SELECT string_agg(x::text, ' ' ORDER BY x::text) FROM unnest(a.attacl) x),
                  col_description(c.oid, a.attnum))
      FROM relations c
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    UNION ALL
    SELECT format('view %s: %s', c.oid::regclass, pg_get_viewdef(c.oid)) FROM relations c WHERE c.relkind = 'v'
    UNION ALL
    SELECT format('index: %s', pg_get_indexdef(c.oid)) FROM relations c WHERE c.relkind IN ('i', 'I')
    UNION ALL
    SELECT format('constraint %s on %s: %s, valid %s, comment %s', n.conname, c.oid::regclass,
                  pg_get_constraintdef(n.oid), n.convalidated, obj_description(n.oid, 'pg_constraint'))
      FROM relations c JOIN pg_constraint n ON n.conrelid = c.oid
    UNION ALL
    SELECT format('trigger: %s, enabled %s, comment %s', pg_get_triggerdef(t.oid), t.tgenabled,
                  obj_description(t.oid, 'pg_trigger'))
      FROM relations c JOIN pg_trigger t ON t.tgrelid = c.oid
     WHERE NOT t.tgisinternal
    UNION ALL
    SELECT format('sequence %s: %s', s.seqrelid::regclass,
                  ROW(s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache, s.seqcycle))
      FROM pg_sequence s JOIN relations c ON c.oid = s.seqrelid
    UNION ALL
    SELECT format('routine %s: %s, rights %s, comment %s', p.oid::regprocedure, pg_get_functiondef(p.oid),
                  (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(coalesce(p.proacl, acldefault('f', p.proowner))) a),
                  obj_description(p.oid, 'pg_proc'))
      FROM pg_proc p JOIN members m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
    UNION ALL
    SELECT format('type %s: kind %s, rights %s, comment %s', t.oid::regtype, t.typtype,
                  (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(coalesce(t.typacl, acldefault('T', t.typowner))) a),
                  obj_description(t.oid, 'pg_type'))
      FROM pg_type t
     WHERE t.oid IN (SELECT objid FROM members WHERE classid = 'pg_type'::regclass)
        OR t.typrelid IN (SELECT oid FROM relations)
    UNION ALL
    SELECT format('schema: rights %s, comment %s',
                  (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(n.nspacl) a),
                  obj_description(n.oid, 'pg_namespace'))
      FROM pg_namespace n WHERE n.nspname = 'outbox'
    UNION ALL
    SELECT format('rights at first: %s %s, %s', pg_describe_object(i.classoid, i.objoid, i.objsubid), i.privtype,
                  (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(i.initprivs) a))
      FROM pg_init_privs i
     WHERE (i.classoid, i.objoid) IN (SELECT classid, objid FROM members)
        OR i.classoid = 'pg_type'::regclass
           AND i.objoid IN (SELECT reltype FROM relations)
    UNION ALL
    SELECT format('dumped: %s where %s', t.oid::regclass, t.condition)
      FROM pg_extension e, unnest(e.extconfig, e.extcondition) t(oid, condition)
     WHERE e.extname = 'outbox'
    UNION ALL
    SELECT 'version ' || extversion FROM pg_extension WHERE extname = 'outbox'
)
SELECT fact FROM facts
 WHERE fact !~ 'outbox\.archive_\w+_\d{8}'
 ORDER BY fact COLLATE "C"
