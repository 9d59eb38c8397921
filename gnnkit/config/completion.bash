_gnnkit() {
    local word="${COMP_LINE:0:$COMP_POINT}"
    word="${word##* }"
    local words
    words=$(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" gnnkit -sc query=bash 2>/dev/null)
    COMPREPLY=()
    local each
    for each in $words; do
        # Readline ends words at = and :, so the text before them is kept.
        [[ "$each" == "$word"* ]] && COMPREPLY+=("${each#"${word%"${word##*[=:]}"}"}")
    done
}
complete -o nospace -o default -F _gnnkit gnnkit
