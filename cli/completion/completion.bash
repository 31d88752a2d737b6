# Completion of outbox, the command line, for bash. The commands and options come from
# the program itself, and topics from the database if it answers within a second.

_outbox_names()
{
    local list=$1
    PGCONNECT_TIMEOUT=1 timeout 2 "${COMP_WORDS[0]}" "$list" -w --json -n 1000 2>/dev/null |
        sed -n "s/^[[ ]{\"${list%s}\": \"\([^\"\\\\]*\)\".*/\1/p"
}

_outbox()
{
    local current=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]} words= command= i
    local describe=$("$program" --describe 2>/dev/null)
    local commands=$(cut -f1 <<<"$describe" | sed '/^$/d')

    # the command: the first words that are no options
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        -h | -p | -U | -d) ((i++)) ;;
        -*) ;;
        *) words+="${words:+ }${COMP_WORDS[i]}"
            if grep -qxF -- "$words" <<<"$commands"; then
                command=$words
                break
            fi
            ;;
        esac
    done

    COMPREPLY=()
    if [[ $current == -* ]]; then
        local options
        if [[ -n $command ]]; then
            options=$(awk -F '\t' -v command="$command" \
                '$1 != "" { here = $1 == command } here && $1 == "" { print $2 }' <<<"$describe")
        else
            options=$(awk -F '\t' '$1 == "" { print $2 }' <<<"$describe" | sort -u)
        fi
        COMPREPLY=($(compgen -W "$options --help" -- "$current"))
    elif [[ -z $command ]]; then
        if [[ -n $words ]]; then
            COMPREPLY=($(compgen -W "$(sed -n "s/^$words //p" <<<"$commands")" -- "$current"))
        else
            COMPREPLY=($(compgen -W "$(cut -d' ' -f1 <<<"$commands" | sort -u) help" -- "$current"))
        fi
    else
        case $command in
        replay | subscriptions)
            COMPREPLY=($(compgen -W "$(_outbox_names subscriptions)" -- "$current"))
            ;;
        topics | peek | tail | enqueue | publish | work | pause | resume | dead*)
            COMPREPLY=($(compgen -W "$(_outbox_names topics)" -- "$current"))
            ;;
        esac
    fi
}

complete -o default -F _outbox outbox
