# The steps of a recording, by `sh steps.sh TRACING FOLDER SHRINK SECONDS [COMMAND...]`.
#
# TRACING is a tracing instance whose events are on, FOLDER gets the tables. SHRINK is 1 if all caches are shrunk before the tables
# `before` and `end` are read. Without COMMAND the machine does what it does anyway, for so many SECONDS. Between a mark and its
# tables nothing forks: a process costs objects of a dozen caches.
set -e
tracing=$1 folder=$2 shrink=$3 seconds=$4
shift 4

mark() { echo "$*" >"$tracing/trace_marker"; }

copy() { while IFS= read -r line; do echo "$line"; done <"$1" >"$2"; }

# What /sys/kernel/slab says of each cache. Where a name is a link, the cache is one of several that share slabs.
attributes() {
    tab=$(printf '\t')
    row="name${tab}link"
    for attribute in $*; do row="$row$tab$attribute"; done
    echo "$row"
    for cache in /sys/kernel/slab/*; do
        [ -d "$cache" ] || continue
        link=-
        if [ -h "$cache" ]; then
            [ "$links" = 1 ] || continue
            link=$(readlink "$cache")
        fi
        row="${cache##*/}$tab${link##*/}"
        for attribute in $*; do
            value=NA
            { IFS= read -r value <"$cache/$attribute" || :; } 2>/dev/null
            row="$row$tab$value"
        done
        echo "$row"
    done
}

# The tables of a moment.
moment() {
    mark "SNAP $1 begin"
    for table in slabinfo buddyinfo; do
        copy /proc/$table "$folder/$1.$table"
        mark "SNAP $1 $table done"
    done
    for table in zoneinfo pagetypeinfo vmstat meminfo; do
        [ ! -r /proc/$table ] || copy /proc/$table "$folder/$1.$table"
    done
    links=0
    attributes slabs total_objects objects partial objects_partial cpu_slabs slabs_cpu_partial >"$folder/$1.sysfs-slab.tsv"
    mark "SNAP $1 end"
}

# Twice: what the first round gives up, the second one may give back.
shrink_all() {
    mark "SHRINK begin"
    for cache in /sys/kernel/slab/* /sys/kernel/slab/*; do
        [ -h "$cache" ] || [ ! -e "$cache/shrink" ] || echo 1 >"$cache/shrink"
    done
    mark "SHRINK end"
}

[ "$shrink" = 0 ] || shrink_all
moment before
mark "WORKLOAD begin $*"
status=0
if [ $# -gt 0 ]; then "$@" 1>&2 || status=$?; else sleep "$seconds"; fi
mark "WORKLOAD end"
# What readers may still see goes back meanwhile.
sleep 4
moment after
if [ "$shrink" = 1 ]; then
    shrink_all
    moment end
fi
echo 0 >"$tracing/tracing_on"

links=1
attributes object_size slab_size objs_per_slab order align cpu_partial min_partial hwcache_align reclaim_account destroy_by_rcu \
    cache_dma aliases usersize sheaf_capacity ctor >"$folder/slab-attributes.tsv"
for cpu in "$tracing"/per_cpu/cpu*; do
    echo "== ${cpu##*/}"
    cat "$cpu/stats"
done >"$folder/ftrace-stats.txt"
cat "$tracing"/events/kmem/*/format >"$folder/formats.txt"
uname -r >"$folder/kernel.txt"
cat /proc/cmdline >"$folder/cmdline.txt"
[ ! -r /proc/modules ] || cat /proc/modules >"$folder/modules.txt"
echo "$status" >"$folder/status.txt"
