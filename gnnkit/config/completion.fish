function _gnnkit
    COMP_LINE=(commandline -cp) gnnkit -sc query=fish 2>/dev/null
end
complete -c gnnkit -f -a '(_gnnkit)'
