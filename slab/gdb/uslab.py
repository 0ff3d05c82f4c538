"""uslab in gdb: what lies in the caches of a live process, or of a core.

    (gdb) source slab/gdb/uslab.py
    (gdb) uslab caches            all caches: objects in use, kept in magazines and depots, free; slabs
    (gdb) uslab slab ADDRESS      the slab there, object by object
    (gdb) uslab whatis ADDRESS    which object an address is of, whether it is in use, and who allocated and freed it
    (gdb) uslab magazines CPU     what a CPU's stacks hold
    (gdb) uslab leaks [CACHE]     objects in use by cache, and which of them nothing in the process points to

It finds everything by the section `.uslab` of the program and of its libraries, so neither debug information nor symbols are
needed. The numbers are those of the moment at which the process stopped: an object that a thread had in hand then, on its way
between magazine and slab, counts as in use.

gdb's Python runs this: `python3` by itself does not.
"""

import re
import struct
from collections import namedtuple
from itertools import dropwhile, islice

import gdb

MAGIC = b"uslabgdb"
VERSION = 2
PAGE = 4096
WORD = 8
# Bytes of the side table for each page; bits of a bitmap that a frame has room for.
SIDE, FRAME_BITMAP_BITS = 64, 256
SUBSYSTEMS = 64
# Kinds of a frame's state, in its lowest bits.
ALLOCATED = 3
# How an object is shown.
IN_USE, IN_STACK, IN_DEPOT, FREE = "in use", "on the stack of CPU %d", "in the depot of node %d", "free in its slab"
IN_QUARANTINE = "free in the quarantine"
# Functions that are the allocator's own.
OWN = re.compile(r"[<&]*(uslab|uslab_magazine|uslab_buddy|uslab_pool)(\[[0-9a-f]+\])?::(?!.*::tests::)")


class Error(gdb.GdbError):
    """What a user is told in one line."""


def read(address, size):
    """Bytes of the process. gdb.MemoryError where there is nothing."""
    return bytes(gdb.selected_inferior().read_memory(address, size))


def words(address, count):
    return struct.unpack("<%dQ" % count, read(address, count * WORD))


def word(address):
    return words(address, 1)[0]


def half(address):
    return struct.unpack("<I", read(address, 4))[0]


# As the fields of the structures in slab/src/debug/gdb.rs, in their order.
Frames = namedtuple("Frames", "size link state head owner data")
FrameList = namedtuple("FrameList", "size first len")
Layer = namedtuple("Layer", "rounds next len magazine")
Record = namedtuple("Record", "first size free when stack thread cpu")
Depot = namedtuple("Depot", "address pieces piece head")
Layouts = namedtuple("Layouts", "frame list layer record depot")
SubsystemDescription = namedtuple("SubsystemDescription", "pages len frames side large caches place entry weak value cache bands")
CacheDescription = namedtuple(
    "CacheDescription",
    "name name_len object_size lead stride constructed full partial empty node nodes stack depot stacks_node stacks regions region cpus"
    " quarantine quarantined tracks",
)
Slab = namedtuple("Slab", "page state objects inuse bits")
# Who allocated or freed an object: a stack's number, a thread and a CPU.
Track = namedtuple("Track", "stack thread cpu")


def sections():
    """Where parts named `.uslab` lie."""
    found = []
    for line in gdb.execute("info files", to_string=True).splitlines():
        match = re.match(r"\s*(0x[0-9a-f]+) - (0x[0-9a-f]+) is \.uslab(?: in .*)?$", line)
        if match:
            found.append((int(match[1], 16), int(match[2], 16)))
    return found


def subsystems():
    """All that are listed, numbered from 0."""
    found, descriptions = [], 0
    for start, end in sections():
        try:
            section = read(start, end - start)
        except gdb.MemoryError:
            continue
        at = section.find(MAGIC)
        while at >= 0:
            version, = struct.unpack_from("<Q", section, at + len(MAGIC))
            if version != VERSION:
                raise Error("uslab: the process has version %d of this, the script knows %d" % (version, VERSION))
            descriptions += 1
            numbers = iter(struct.unpack_from("<%dQ" % (24 + SUBSYSTEMS), section, at + len(MAGIC) + WORD))
            parts = (Frames, FrameList, Layer, Record, Depot)
            layouts = Layouts(*[part(*islice(numbers, len(part._fields))) for part in parts])
            listed = list(numbers)
            found += [(layouts, seen) for seen in listed if seen]
            at = section.find(MAGIC, at + 1)
    if not descriptions:
        raise Error("uslab: no section .uslab in this process: is it running, and uslab in it?")
    return [Subsystem(i, layouts, seen) for i, (layouts, seen) in enumerate(found)]


class Subsystem:
    def __init__(self, number, layouts, seen):
        self.number = number
        self.frame, self.list, self.layer, self.record, self.depot = layouts
        self.seen = SubsystemDescription(*words(seen, len(SubsystemDescription._fields)))
        first, count = words(self.seen.caches + self.seen.place, 2)
        self.caches = []
        for i in range(count):
            weak = word(first + i * self.seen.entry + self.seen.weak)
            # A `Weak` of nothing is all ones.
            if weak not in (0, 2**64 - 1):
                self.caches.append(Cache(self, weak + self.seen.value))
        self.by_address = {cache.address: cache for cache in self.caches}

    def page_of(self, address):
        page = (address - self.seen.pages) // PAGE
        return page if 0 <= page < self.seen.len else None

    def address_of(self, page):
        return self.seen.pages + page * PAGE

    def frame_at(self, page):
        return self.seen.frames + page * self.frame.size

    def owner_of(self, page):
        return word(self.frame_at(page) + self.frame.owner)

    def slab_at(self, page):
        """The slab that begins there."""
        frame = self.frame_at(page)
        head = word(frame + self.frame.data)
        inuse, objects = head & 0xFFFF, head >> 16 & 0xFFFF
        count = (objects + 63) // 64
        at = frame + self.frame.data + WORD if objects <= FRAME_BITMAP_BITS else self.seen.side + page * SIDE
        bits = 0
        for i, part in enumerate(words(at, count)):
            bits |= part << 64 * i
        state = "empty" if inuse == 0 else "full" if inuse == objects else "partial"
        return Slab(page, state, objects, inuse, bits & ((1 << objects) - 1))

    def pages_on(self, lists):
        """First pages of the slabs on a list."""
        left = half(lists + self.list.len)
        page = half(lists + self.list.first) if left else None
        while left:
            yield page
            page, left = half(self.frame_at(page) + self.frame.link) - 1, left - 1


class Cache:
    def __init__(self, subsystem, address):
        self.subsystem, self.address = subsystem, address
        self.seen = CacheDescription(*words(address + subsystem.seen.cache, len(CacheDescription._fields)))
        self.name = read(self.seen.name, self.seen.name_len).decode("utf-8", "replace")

    def slabs(self):
        of = self.subsystem
        bands = [self.seen.partial + band * of.list.size for band in range(of.seen.bands)]
        for node in range(self.seen.nodes):
            for lists in [self.seen.full] + bands + [self.seen.empty]:
                for page in of.pages_on(lists + node * self.seen.node):
                    yield of.slab_at(page)

    def objects_in(self, slab):
        """Addresses, and whether each is out: with a user, or in a magazine."""
        start = self.subsystem.address_of(slab.page) + self.seen.lead
        for i in range(slab.objects):
            yield start + i * self.seen.stride, bool(slab.bits >> i & 1)

    def stack(self, cpu):
        """What a CPU's stacks hold, the newest last."""
        held = []
        for node in range(self.seen.stacks):
            stack = half(self.seen.stack + node * self.seen.stacks_node)
            head = self.seen.regions + cpu * self.seen.region + stack
            try:
                count = word(head) & 0xFFFF
                held += words(head + self.subsystem.layer.rounds, count) if count else ()
            except gdb.MemoryError:
                # A CPU that was never used has nothing there.
                pass
        return held

    def depot(self, node):
        """What a depot's magazines hold, magazine by magazine."""
        layer = self.subsystem.layer
        slot = word(self.seen.depot + node * self.seen.stacks_node)
        while slot:
            yield words(slot + layer.magazine, half(slot + layer.len))
            slot = word(slot + layer.next)

    def quarantine(self):
        """Freed objects that are kept from use."""
        places = words(self.seen.quarantine, self.seen.quarantined) if self.seen.quarantined else ()
        return [object for object in places if object]

    def kept(self):
        """What is in magazines: for each object where."""
        kept = dict.fromkeys(self.quarantine(), IN_QUARANTINE)
        for cpu in range(self.seen.cpus):
            kept.update((object, IN_STACK % cpu) for object in self.stack(cpu))
        for node in range(self.seen.stacks):
            for magazine in self.depot(node):
                kept.update((object, IN_DEPOT % node) for object in magazine)
        return kept

    def in_use(self):
        """Addresses of objects that users have."""
        kept = self.kept()
        for slab in self.slabs():
            for object, out in self.objects_in(slab):
                if out and object not in kept:
                    yield object


    def at(self, address):
        """The slab that an address of the cache lies in, the number of the object there, and which byte of that it is."""
        of = self.subsystem
        slab = of.slab_at(half(of.frame_at(of.page_of(address)) + of.frame.head))
        return slab, *divmod(address - of.address_of(slab.page) - self.seen.lead, self.seen.stride)

    def tracks(self, address):
        """Who allocated the object at an address and who freed it, as far as that is known."""
        slab, index, _ = self.at(address)
        block = word(self.seen.tracks + slab.page * WORD) if self.seen.tracks else 0
        if not block or not 0 <= index < slab.objects:
            return None, None
        of = self.subsystem.record
        deeds = [block + of.first + index * of.size + free for free in (0, of.free)]
        return [Track(*[half(deed + part) for part in (of.stack, of.thread, of.cpu)]) if word(deed + of.when) else None
                for deed in deeds]


def function_at(address):
    """The name of the function that a call returns to, and its line, where they are known."""
    # The call is before what it returns to.
    symbol = gdb.execute("with print asm-demangle on -- info symbol 0x%x" % (address - 1), to_string=True)
    name = re.match(r"(.+?)(?:::h[0-9a-f]{16})?(?: \+ \d+)? in section", symbol)
    line = gdb.find_pc_line(address - 1)
    where = " (%s:%d)" % (line.symtab.filename, line.line) if line.symtab and line.line else ""
    return (name[1] if name else "0x%x" % address) + where


def stack_of(subsystem, number):
    """The functions of a call stack, the innermost first, without the allocator's own."""
    depot = subsystem.depot
    if not number:
        return ["no stack"]
    record = word(depot.address + depot.pieces + number // depot.piece * WORD) + number % depot.piece * WORD
    count = word(record + WORD) >> 32
    names = [function_at(address) for address in words(record + depot.head * WORD, count)]
    outer = list(dropwhile(OWN.match, names))
    return outer or names


def tracks_of(address):
    """Who allocated the object at an address and who freed it, in lines."""
    subsystem, cache, _ = slab_of(address)
    for deed, track in zip(("allocated", "freed"), cache.tracks(address) if cache else ()):
        if track:
            yield "%s by thread %d on CPU %d:" % (deed, track.thread, track.cpu)
            yield from ("  " + function for function in stack_of(subsystem, track.stack))


def slab_of(address):
    """The subsystem, the cache and the slab that an address lies in; the cache is None in a block of pages."""
    for subsystem in subsystems():
        page = subsystem.page_of(address)
        if page is None:
            continue
        try:
            owner = subsystem.owner_of(page)
        except gdb.MemoryError:
            owner = 0
        cache = subsystem.by_address.get(owner)
        if cache:
            return subsystem, cache, cache.at(address)[0]
        return subsystem, None, owner
    return None, None, None


def whatis(address):
    """What an address is, in a line."""
    subsystem, cache, slab = slab_of(address)
    if subsystem is None:
        return "0x%x: in no subsystem's pages" % address
    if cache is None:
        where = "page %d of subsystem %d" % (subsystem.page_of(address), subsystem.number)
        if slab == subsystem.seen.large:
            return "0x%x: in a block of pages that is no slab, %s" % (address, where)
        return "0x%x: in no object, %s" % (address, where)
    start = subsystem.address_of(slab.page)
    _, index, inside = cache.at(address)
    where = "slab 0x%x of cache %s, subsystem %d" % (start, cache.name, subsystem.number)
    if index < 0:
        return "0x%x: before the first object of %s" % (address, where)
    if index >= slab.objects:
        return "0x%x: behind the last object of %s" % (address, where)
    object = address - inside
    state = FREE
    if slab.bits >> index & 1:
        state = cache.kept().get(object, IN_USE)
    return "0x%x: byte %d of object 0x%x (%d bytes), number %d of %s: %s" % (
        address, inside, object, cache.seen.object_size, index, where, state)


def table(rows):
    """Rows as lines: the first column left, the others right."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join(cells).rstrip())


def address_of(argument):
    if not argument:
        raise Error("uslab: an address is missing")
    return int(gdb.parse_and_eval(argument).cast(gdb.lookup_type("unsigned long")))


class Uslab(gdb.Command):
    """What lies in uslab's caches: uslab caches, slab ADDRESS, whatis ADDRESS, magazines CPU, leaks [CACHE]."""

    def __init__(self):
        super().__init__("uslab", gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)


class Verb(gdb.Command):
    def __init__(self):
        super().__init__("uslab " + type(self).__name__.lower(), gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        self.dont_repeat()
        try:
            self.run(argument.strip())
        except gdb.MemoryError as error:
            raise Error("uslab: %s; a core may have left it out" % error)


class Caches(Verb):
    """uslab caches: of each cache that has a slab now, objects in use, in stacks, in depots and free in slabs; slabs; freed objects that
    are kept from use."""

    def run(self, argument):
        rows = [("cache", "subsystem", "in use", "stacks", "depots", "free", "size", "full", "partial", "empty",
                 "quarantine")]
        for subsystem in subsystems():
            for cache in subsystem.caches:
                slabs = list(cache.slabs())
                if not slabs:
                    continue
                stacks = sum(len(cache.stack(cpu)) for cpu in range(cache.seen.cpus))
                nodes = range(cache.seen.stacks)
                depots = sum(len(magazine) for node in nodes for magazine in cache.depot(node))
                out = sum(slab.inuse for slab in slabs)
                free = sum(slab.objects for slab in slabs) - out
                kept = len(cache.quarantine())
                states = [sum(slab.state == state for slab in slabs) for state in ("full", "partial", "empty")]
                rows.append((cache.name, subsystem.number, out - stacks - depots - kept, stacks, depots, free,
                             cache.seen.object_size, *states, kept))
        table(rows)


class SlabAt(Verb):
    """uslab slab ADDRESS: the slab that an address lies in, a letter an object."""

    def __init__(self):
        gdb.Command.__init__(self, "uslab slab", gdb.COMMAND_DATA)

    def run(self, argument):
        address = address_of(argument)
        subsystem, cache, slab = slab_of(address)
        if cache is None:
            raise Error("uslab: " + whatis(address))
        kept = cache.kept()
        print("slab 0x%x of cache %s, subsystem %d: %s, %d of %d objects out, %d bytes each, %d apart" % (
            subsystem.address_of(slab.page), cache.name, subsystem.number, slab.state, slab.inuse, slab.objects,
            cache.seen.object_size, cache.seen.stride))
        letters = ["." if not out else "m" if object in kept else "U" for object, out in cache.objects_in(slab)]
        for i in range(0, len(letters), 64):
            object = subsystem.address_of(slab.page) + cache.seen.lead + i * cache.seen.stride
            print("0x%x %s" % (object, "".join(letters[i:i + 64])))
        print("U in use, m in a magazine, . free")


class WhatIs(Verb):
    """uslab whatis ADDRESS: which object an address is of, and whether it is in use; with slab_debug=U who allocated and who freed it."""

    def run(self, argument):
        address = address_of(argument)
        print(whatis(address), *tracks_of(address), sep="\n")


class Magazines(Verb):
    """uslab magazines CPU: what a CPU's stacks hold, the object that would be handed out next first."""

    def run(self, argument):
        if not argument.isdigit():
            raise Error("uslab: a CPU's number is missing")
        cpu, rows = int(argument), [("cache", "subsystem", "objects", "next")]
        for subsystem in subsystems():
            for cache in subsystem.caches:
                if cpu < cache.seen.cpus:
                    held = cache.stack(cpu)
                    if held:
                        shown = " ".join("0x%x" % object for object in held[:-5:-1])
                        rows.append((cache.name, subsystem.number, len(held), shown))
        table(rows)


def mappings():
    """Memory that the process may write to: in a core what it has of it."""
    pid = gdb.selected_inferior().pid
    text = gdb.execute("maint info sections", to_string=True)
    core = re.findall(r"0x([0-9a-f]+)->0x([0-9a-f]+) at 0x[0-9a-f]+: load\S* ALLOC LOAD(?! READONLY)", text)
    if core:
        return [(int(start, 16), int(end, 16)) for start, end in core]
    with open("/proc/%d/maps" % pid) as maps:
        lines = [re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line) for line in maps]
    return [(int(line[1], 16), int(line[2], 16)) for line in lines if line]


class Leaks(Verb):
    """uslab leaks [CACHE]: objects in use by cache, and those of them that nothing points to; with slab_debug=U who allocated these.

    Whatever looks like an address counts, also into the middle of an object: in registers, in stacks, in variables, in other memory that
    the process may write to, in free objects that stay constructed, and in objects that are reached themselves. So each that is named is unreachable, unless its address is
    kept in another form; some that are lost are not named, because something looks like their address. Cost: a look at all of it."""

    # Bytes that are read at once.
    PIECE = 1 << 20

    def run(self, argument):
        # By their addresses: an object's end, and its cache.
        objects, pages, described = {}, [], []
        for subsystem in subsystems():
            pages.append((subsystem.address_of(0), subsystem.address_of(subsystem.seen.len)))
            # What stacks and depots hold is known: a pointer there keeps nothing.
            frames = subsystem.seen.frames
            described.append((frames, frames + subsystem.seen.len * subsystem.frame.size))
            for cache in subsystem.caches:
                described.append((cache.seen.regions, cache.seen.regions + cache.seen.region * (cache.seen.cpus + 2)))
                for object in cache.in_use():
                    objects[object] = cache
        reached = self.reached(objects, pages, described)
        rows, lost = [("cache", "subsystem", "in use", "bytes", "unreachable")], []
        by_cache = {}
        for object, cache in objects.items():
            by_cache.setdefault(cache, []).append(object)
        for cache, own in sorted(by_cache.items(), key=lambda row: -len(row[1]) * row[0].seen.stride):
            if argument and cache.name != argument:
                continue
            unreachable = [object for object in own if object not in reached]
            lost += [(object, cache) for object in unreachable]
            rows.append((cache.name, cache.subsystem.number, len(own), len(own) * cache.seen.stride, len(unreachable)))
        table(rows)
        by_holder = {}
        for object, cache in lost:
            by_holder.setdefault((cache, self.allocated(object, cache)), []).append(object)
        left = 20
        for (cache, stack), own in sorted(by_holder.items(), key=lambda row: -len(row[1])):
            for object in own[:left]:
                print("0x%x of cache %s: unreachable" % (object, cache.name))
            if own[:left] and stack:
                print("%d of them allocated by:" % len(own), *stack_of(cache.subsystem, stack), sep="\n  ")
            left -= len(own[:left])
        if len(lost) > 20:
            print("and %d others" % (len(lost) - 20))

    @staticmethod
    def allocated(object, cache):
        """The number of the stack that allocated an object; None if it is not known."""
        track = cache.tracks(object)[0]
        return track.stack if track else None

    def reached(self, objects, pages, described):
        # A cache's slabs by page: which object an address lies in is arithmetic then.
        slabs = {}
        for cache in set(objects.values()):
            start_of = cache.subsystem.address_of
            for slab in cache.slabs():
                start = start_of(slab.page) + cache.seen.lead
                for page in range(start // PAGE, (start + slab.objects * cache.seen.stride + PAGE - 1) // PAGE):
                    slabs[page] = (start, cache.seen.stride)
        reached, waiting = set(), []
        # What lies in a subsystem's pages and is no slab, such as a block of pages of a buffer: a root, too.
        low, high = min(slabs, default=1) * PAGE, (max(slabs, default=0) + 1) * PAGE

        def see(numbers):
            for number in numbers:
                if low <= number < high:
                    slab = slabs.get(number // PAGE)
                    if slab:
                        object = number - (number - slab[0]) % slab[1]
                        if object in objects and object not in reached:
                            reached.add(object)
                            waiting.append(object)

        selected = gdb.selected_thread()
        for thread in gdb.selected_inferior().threads():
            thread.switch()
            for register in gdb.selected_frame().architecture().registers():
                try:
                    value = gdb.selected_frame().read_register(register)
                    if value.type.sizeof == WORD:
                        see([int(value.cast(gdb.lookup_type("unsigned long")))])
                except gdb.error:
                    continue
        if selected:
            selected.switch()
        for start, end in mappings():
            for at in range(start, end, self.PIECE):
                size = min(self.PIECE, end - at)
                try:
                    piece = read(at, size // WORD * WORD)
                except gdb.MemoryError:
                    continue
                see(self.outside(at, struct.unpack("<%dQ" % (size // WORD), piece), pages, described, slabs))
        for subsystem in {cache.subsystem for cache in objects.values()}:
            for cache in subsystem.caches:
                for slab in cache.slabs() if cache.seen.constructed else ():
                    for object, _ in cache.objects_in(slab):
                        if object not in objects:
                            see(words(object, cache.seen.stride // WORD))
        while waiting:
            object = waiting.pop()
            see(words(object, objects[object].seen.stride // WORD))
        return reached

    @staticmethod
    def outside(at, numbers, pages, described, slabs):
        """Those of a piece that lie in no slab, nor in what describes them."""
        end = at + len(numbers) * WORD
        if not any(start < end and at < stop for start, stop in pages + described):
            return numbers
        kept = []
        for i in range(0, len(numbers), PAGE // WORD):
            page = at + i * WORD
            if page // PAGE not in slabs and not any(start <= page < stop for start, stop in described):
                kept += numbers[i:i + PAGE // WORD]
        return kept


Uslab()
for verb in (Caches, SlabAt, WhatIs, Magazines, Leaks):
    verb()
