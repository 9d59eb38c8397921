_gnnkit() {
    local -a words_found
    words_found=(${(f)"$(COMP_LINE="${words[1,CURRENT]}" gnnkit -sc query=zsh 2>/dev/null)"})
    compadd -S '' -- $words_found
}
compdef _gnnkit gnnkit
