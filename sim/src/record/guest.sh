# Process 1 of a kernel that is booted to be recorded. What is set lies in /settings, the steps in /steps.sh.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs tmp /tmp
mount -t tracefs tracefs /sys/kernel/tracing
ifconfig lo 127.0.0.1 up
echo "uslab: the guest is up"
while IFS='=' read -r key value; do
    for file in /sys/kernel/slab/*/"$key"; do echo "$value" >"$file"; done
done </settings
sh /steps.sh /sys/kernel/tracing /out 1 0 "$@"
# From here on nothing is traced.
while read -r module; do insmod "/modules/$module"; done </modules/order
if mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 out /host 2>/dev/null; then
    cp /out/* /host/ && cat /sys/kernel/tracing/trace >/host/trace.txt && sync && mv /host/status.txt /host/done
else
    # A kernel without 9p: all goes through the second serial port.
    gzip -1 -c </sys/kernel/tracing/trace >/out/trace.txt.gz && mv /out/status.txt /out/done
    stty -F /dev/ttyS1 raw && tar -c -C /out . >/dev/ttyS1
fi
poweroff -f
