# Completion of outbox, the command line, for bash. The commands and options come from
# the program itself, and topics from the database if it answers within a second.
#
# Names of topics were made by others, so they are never expanded: compgen -W would run
# the commands in them.

# Add the lines that begin with what is typed to the replies, quoted for the shell.
_outbox_add()
{
    local candidate
    while IFS= read -r candidate; do
        [[ $candidate == "$current"* ]] && COMPREPLY+=("$(printf '%q' "$candidate")")
    done
}

# The names in a list of the database to which the options before lead.
_outbox_names()
{
    PGCONNECT_TIMEOUT=1 timeout 2 "$program" "$1" "${connection[@]}" -w --json -n 1000 2>/dev/null |
        sed -n "s/^[[ ]{\"${1%s}\": \"\([^\"\\\\]*\)\".*/\1/p"
}

_outbox()
{
    local current=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]} words= command= i
    local describe=$("$program" --describe 2>/dev/null)
    local commands=$(cut -f1 <<<"$describe" | sed '/^$/d')
    local -a connection=()

    # the command: the first words that are no options
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        -h | -p | -U | -d | --host | --port | --username | --dbname)
            connection+=("${COMP_WORDS[i]}")
            # bash takes an equals sign for a word
            [[ ${COMP_WORDS[i + 1]} == = ]] && ((i++))
            connection+=("${COMP_WORDS[++i]}")
            ;;
        -*) ;;
        *)
            [[ -n $command ]] && continue
            words+="${words:+ }${COMP_WORDS[i]}"
            grep -qxF -- "$words" <<<"$commands" && command=$words
            ;;
        esac
    done

    COMPREPLY=()
    if [[ $current == -* ]]; then
        if [[ -n $command ]]; then
            _outbox_add < <(awk -F '\t' -v command="$command" \
                '$1 != "" { here = $1 == command } here && $1 == "" { print $2 } END { print "--help" }' <<<"$describe")
        else
            _outbox_add < <(awk -F '\t' '$1 == "" { print $2 } END { print "--help" }' <<<"$describe" | sort -u)
        fi
    elif [[ -z $command ]]; then
        if [[ -n $words ]]; then
            _outbox_add < <(awk -v words="$words " \
                'index($0, words) == 1 { print substr($0, length(words) + 1) }' <<<"$commands")
        else
            _outbox_add < <(cut -d' ' -f1 <<<"$commands" | sort -u; echo help)
        fi
    else
        case $command in
        replay | subscriptions)
            _outbox_add < <(_outbox_names subscriptions)
            ;;
        topics | peek | tail | enqueue | publish | work | pause | resume | dead*)
            _outbox_add < <(_outbox_names topics)
            ;;
        esac
    fi
}

complete -o default -F _outbox outbox
