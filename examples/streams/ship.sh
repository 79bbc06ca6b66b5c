# A handler for `tidegate stream --to 'command:exec sh examples/streams/ship.sh'`: reads a record per line, answers each.
while read -r order; do
    case $order in
    *'"amount"'*)
        echo "shipping $order" >&2
        echo ok
        ;;
    *) echo "rejected an order needs an amount" ;;
    esac
done
