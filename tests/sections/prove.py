"""Proves that the restartable sequences of a program do what the portable bodies do.

    prove.py [--planted] FILE...

Each FILE is what a test `restartable_sections_are_written_to_the_proof_file` wrote: the sections of that program, decoded. The first one, of the
magazines' own tests, has samples beside them: what the portable bodies (`magazine/src/region.rs`) did to random regions.

What is shown of each section, for all values of all words (batches of 1 to 4 rounds):

1. From its restart label it announces its own descriptor, and reads nothing before its start.
2. It ends as the specification below says: the same stores, the same result. Its operands are what they were.
3. Wherever it is aborted, its operands are what they were and no head has changed. What else was written nobody reads: places
   above the length, the batch's own room; or it is a `cap` within the class's limit and what is committed.
4. It reads no word twice: a drain may change what a word leads to in between.

A section that is aborted runs again from its restart label, with operands that are what they were (3): so 2 holds of that run, on
whatever the memory is then.

The specification is stated once, as terms of z3, and must agree with the samples. Sections that differ in nothing but addresses
and names of registers are proven once. `--planted` changes each instruction of each in turn, and each change must be refuted.

Assumed, by the safety comments of `cpu/rseq/x86_64.rs` and the orders that `aarch64.rs` argues beside it: everything is aligned; the
table's words, the region, the batch's room, statics and the thread's `struct rseq` are different memory; `cap` and `limit` have 16
bits; there is no null among the rounds of a batch; nobody else writes to what the section works on before it commits or aborts, and
nobody sees its accesses out of order.

Exit codes: 0 proven, 1 refuted, 2 wrong usage, or an instruction of no known meaning.
"""

import json
import sys
from collections import Counter

import z3
from z3 import And, BitVec, BitVecVal, BoolVal, Concat, Extract, If, Implies, LShR, Not, Or, SignExt, ZeroExt
from z3 import UGE, UGT, ULE, ULT

BATCHES = range(1, 5)
# What a section may run; one that is slowed down on purpose takes 300.
STEPS = 1000
# Bytes from the start of a region that a section may reach, whatever its words are.
REACH = 1 << 23


class Refuted(Exception):
    """The section does not do what it should; where, and why."""


class Unknown(Exception):
    """There is no meaning for this."""


# ---- a region: words of 64 bits by their number, which are found by their offset in bytes ----

# A region's array has so many bits of a number.
NUMBER = REACH.bit_length() - 4


def number(at):
    return Extract(NUMBER + 2, 3, z3.simplify(at))


def load(mem, at, half=None):
    word = z3.Select(mem, number(at))
    return word if half is None else Extract(32 * half + 31, 32 * half, word)


def store(mem, at, value, half=None):
    if half is not None:
        word = z3.Select(mem, number(at))
        value = Concat(value, Extract(31, 0, word)) if half else Concat(Extract(63, 32, word), value)
    return z3.Store(mem, number(at), value)


# ---- the specification: the bodies of `magazine/src/region.rs` ----

class Spec:
    """What an operation does to a region `mem`: whether it is `done`, the region `after` it, and the `popped` rounds."""

    def __init__(self, layout, kind, mem, stack, rounds):
        self.layout, self.mem, self.stack, self.rounds = layout, mem, stack, rounds
        self.count = len(rounds)
        self.head = load(mem, stack)
        self.len = self.head & layout["LEN_MASK"]
        # The halves of one word.
        self.cap_at, self.limit_at = stack - layout["CAP"], stack - layout["LIMIT"]
        self.halves = [-layout[name] >> 2 & 1 for name in ("CAP", "LIMIT")]
        self.cap = self.cap_of(mem)
        # The other half of it says when a stack is quiet, which no section asks for before its commit.
        self.limit = load(mem, self.limit_at, self.halves[1]) & 0xffff
        self.committed = load(mem, BitVecVal(layout["COMMITTED"], 64))
        self.popped = []
        self.done, self.after = getattr(self, kind)()

    def cap_of(self, mem):
        return load(mem, self.cap_at, self.halves[0])

    def place(self, i):
        return self.stack + self.layout["NULL"] + i * self.layout["ROUND"]

    def end(self, cap):
        return self.place(ZeroExt(32, cap) + 1)

    def Pop(self):
        self.popped = [load(self.mem, self.place(self.len))]
        after = store(self.mem, self.stack, self.head + self.layout["OP_STEP"] - 1)
        done = self.popped[0] != 0
        return done, If(done, after, self.mem)

    def Push(self):
        top = load(self.mem, self.place(self.len))
        done = And(ULT(Extract(31, 0, self.len), self.cap), top != self.rounds[0])
        after = store(self.mem, self.place(self.len + 1), self.rounds[0])
        after = store(after, self.stack, self.head + self.layout["OP_STEP"] + 1)
        return done, If(done, after, self.mem)

    def PushBatch(self):
        need = Extract(31, 0, self.len) + self.count
        widens = UGT(need, self.cap)
        twice = 2 * self.cap
        wanted = If(UGT(twice, need), twice, need)
        cap = If(ULT(wanted, self.limit), wanted, self.limit)
        refused = And(widens, Or(UGT(need, cap), UGT(self.end(cap), self.committed)))
        after = If(widens, store(self.mem, self.cap_at, cap, self.halves[0]), self.mem)
        for i, round in enumerate(self.rounds):
            after = store(after, self.place(self.len + 1 + i), round)
        after = store(after, self.stack, self.head + self.count)
        return Not(refused), If(refused, self.mem, after)

    def PopBatch(self):
        enough = UGE(self.len, self.count)
        self.popped = [load(self.mem, self.place(self.len - self.count + 1 + i)) for i in range(self.count)]
        done = And(enough, *[round != 0 for round in self.popped])
        after = store(self.mem, self.stack, self.head - self.count)
        return done, If(done, after, self.mem)


def written(term):
    """The words that a chain of stores with constant numbers writes."""
    numbers = set()
    while z3.is_store(term):
        numbers.add(term.arg(1).as_long())
        term = term.arg(0)
    return numbers


def region():
    return z3.Array("region", z3.BitVecSort(NUMBER), z3.BitVecSort(64))


def check_samples(layout, samples):
    """The specification does what the portable bodies did."""
    both = Counter()
    for sample in samples:
        start = z3.K(z3.BitVecSort(NUMBER), BitVecVal(0, 64))
        for at, word in sample["before"]:
            start = z3.Store(start, BitVecVal(at >> 3, NUMBER), BitVecVal(word, 64))
        rounds = [BitVecVal(round, 64) for round in sample["rounds"]]
        spec = Spec(layout, sample["kind"], start, BitVecVal(sample["stack"], 64), rounds)
        after, done = z3.simplify(spec.after), z3.is_true(z3.simplify(spec.done))
        expected, got = {at: word for at, word in sample["after"]}, {}
        for where in written(after) | {at >> 3 for at in expected}:
            word = z3.simplify(z3.Select(after, BitVecVal(where, NUMBER))).as_long()
            if word:
                got[8 * where] = word
        popped = [z3.simplify(round).as_long() for round in spec.popped if done or sample["kind"] == "Pop"]
        if (done, got, popped) != (sample["done"], expected, sample["popped"]):
            raise Refuted(f"the specification does not agree with the portable body: {sample}, {done}, {got}, {popped}")
        both[sample["kind"], done] += 1
    if len(both) != 8:
        raise Refuted(f"samples of all operations, done and missed, are needed: {both}")
    return len(samples)


# ---- the machine ----

class State:
    """Registers, flags and memory (the region, the thread's `struct rseq`, the batch); and what was done so far."""

    def __init__(self, registers, mem, thread, batch):
        self.registers, self.mem, self.thread, self.batch = registers, mem, thread, batch
        # None: nobody has set it.
        self.carry = self.zero = None
        self.path, self.loads, self.stores, self.inputs, self.own = [], [], [], set(), set()

    def copy(self):
        new = State(dict(self.registers), self.mem, dict(self.thread), dict(self.batch))
        new.carry, new.zero = self.carry, self.zero
        new.path, new.loads, new.stores = list(self.path), list(self.loads), list(self.stores)
        new.inputs, new.own = self.inputs, set(self.own)
        return new

    def register(self, name):
        if name not in self.own:
            self.inputs.add(name)
        return self.registers[name]


class X86:
    """What the instructions of x86-64 do that occur in sections."""

    SEGMENTS = True
    REGISTERS = ["RAX", "RBX", "RCX", "RDX", "RSI", "RDI", "RBP", "RSP"] + [f"R{i}" for i in range(8, 16)]
    CONDITIONS = {
        "e": lambda s: X86.flag(s.zero), "ne": lambda s: Not(X86.flag(s.zero)),
        "b": lambda s: X86.flag(s.carry), "ae": lambda s: Not(X86.flag(s.carry)),
        "be": lambda s: Or(X86.flag(s.carry), X86.flag(s.zero)),
        "a": lambda s: Not(Or(X86.flag(s.carry), X86.flag(s.zero))),
    }

    def __init__(self, prover):
        self.prover = prover

    @staticmethod
    def decoded(one):
        return one

    @staticmethod
    def flag(flag):
        if flag is None:
            raise Refuted("reads a flag that nobody has set")
        return flag

    def address(self, state, operand):
        if operand["base"] == "RIP":
            return BitVecVal(operand["displacement"], 64)
        at = BitVecVal(operand["displacement"], 64)
        if operand["base"]:
            at = at + state.register(operand["base"])
        if operand["index"]:
            at = at + state.register(operand["index"]) * operand["scale"]
        return at

    def read(self, state, operand, bits=None):
        if "immediate" in operand:
            return BitVecVal(operand["immediate"], bits)
        if "register" in operand:
            return Extract(operand["bits"] - 1, 0, state.register(operand["register"]))
        return self.prover.load(state, self.address(state, operand), operand["bits"], operand["segment"])

    def write(self, state, operand, value):
        if "register" in operand:
            if operand["bits"] < 32:
                raise Unknown("a part of a register is written")
            state.registers[operand["register"]] = z3.simplify(ZeroExt(64 - operand["bits"], value))
            state.own.add(operand["register"])
        else:
            at = self.address(state, operand)
            self.prover.store(state, at, value, operand["bits"], operand["segment"])

    def step(self, state, instruction):
        """Runs it. `(condition, target)` of a jump, else None."""
        name, operands = instruction["mnemonic"].lower(), instruction["operands"]
        if name.startswith("j"):
            condition = BoolVal(True) if name == "jmp" else self.condition(state, name[1:], instruction)
            return condition, operands[0]["target"]
        if name.startswith("cmov"):
            to, of = operands
            value = If(self.condition(state, name[4:], instruction), self.read(state, of), self.read(state, to))
            self.write(state, to, value)
            return None
        known = getattr(self, "do_" + name, None)
        if known is None:
            raise Unknown(f"`{instruction['text']}`: no meaning is known of {instruction['mnemonic']}")
        known(state, *operands)
        return None

    def condition(self, state, name, instruction):
        if name not in self.CONDITIONS:
            raise Unknown(f"`{instruction['text']}`: no meaning is known of {instruction['mnemonic']}")
        return self.CONDITIONS[name](state)

    def do_lea(self, state, to, of):
        self.write(state, to, self.address(state, of))

    def do_mov(self, state, to, of):
        self.write(state, to, self.read(state, of, to["bits"]))

    def do_movsxd(self, state, to, of):
        self.write(state, to, SignExt(32, self.read(state, of)))

    def do_movzx(self, state, to, of):
        self.write(state, to, ZeroExt(to["bits"] - of["bits"], self.read(state, of)))

    def do_pause(self, state):
        pass

    def do_add(self, state, to, of):
        a, b = self.read(state, to), self.read(state, of, to["bits"])
        state.carry, state.zero = ULT(a + b, a), a + b == 0
        self.write(state, to, a + b)

    def do_sub(self, state, to, of):
        a, b = self.read(state, to), self.read(state, of, to["bits"])
        state.carry, state.zero = ULT(a, b), a == b
        self.write(state, to, a - b)

    def do_cmp(self, state, to, of):
        a, b = self.read(state, to), self.read(state, of, to["bits"])
        state.carry, state.zero = ULT(a, b), a == b

    def do_test(self, state, to, of):
        both = self.read(state, to) & self.read(state, of, to["bits"])
        state.carry, state.zero = BoolVal(False), both == 0

    def do_xor(self, state, to, of):
        # Of a register with itself it reads nothing.
        same = to == of and "register" in to
        value = BitVecVal(0, to["bits"]) if same else self.read(state, to) ^ self.read(state, of, to["bits"])
        state.carry, state.zero = BoolVal(False), value == 0
        self.write(state, to, value)

    def do_inc(self, state, to):
        value = self.read(state, to) + 1
        state.zero = value == 0
        self.write(state, to, value)

    def do_dec(self, state, to):
        value = self.read(state, to) - 1
        state.zero = value == 0
        self.write(state, to, value)


class Arm:
    """What the instructions of aarch64 do that occur in sections, read off their words."""

    SEGMENTS = False
    REGISTERS = [f"X{i}" for i in range(31)]
    CONDITIONS = {0: "e", 1: "ne", 2: "ae", 3: "b", 8: "a", 9: "be"}

    def __init__(self, prover):
        self.prover = prover

    @staticmethod
    def decoded(one):
        """Its name and operands, as an instruction of x86-64 has them."""
        word, ip = one["word"], one["ip"]
        low, base, index = word & 31, word >> 5 & 31, word >> 16 & 31
        bits, shift = 64 if word >> 31 else 32, word >> 10 & 63

        def register(i, bits=bits, **more):
            return {"register": f"X{i}", "bits": bits} | more

        def immediate(value):
            return {"immediate": value}

        def memory(at=0, bits=64 if word >> 30 & 1 else 32, **more):
            return {"base": f"X{base}", "index": None, "displacement": at & (1 << 64) - 1, "bits": bits} | more

        def signed(from_, width):
            value = word >> from_ & (1 << width) - 1
            return value - (1 << width) * (value >> width - 1)

        def bitmask():
            # As the manual's DecodeBitMasks, of elements as wide as the register.
            ones, right, wide = (word >> 10 & 63) + 1, word >> 16 & 63, word >> 22 & 1
            if not wide and (word >> 15 & 1 or bits == 64):
                raise Unknown(f"`{one['text']}`: a mask of short elements")
            mask = (1 << ones) - 1
            return (mask >> right | mask << bits - right) & (1 << bits) - 1

        imm12 = (word >> 10 & 0xfff) << 12 * (word >> 22 & 1)
        scaled = (word >> 10 & 0xfff) * (8 if word >> 30 & 1 else 4)
        extended = {1: 16, 2: 32, 3: 64, 6: -32}.get(word >> 13 & 7)
        load_index = {"index": f"X{index}", "extend": {2: 32, 3: 64, 6: -32}.get(word >> 13 & 7),
                      "scale": (8 if word >> 30 & 1 else 4) if word >> 12 & 1 else 1}
        target = {"target": ip + 4 * signed(0 if word & 0xfc000000 == 0x14000000 else 5, 26 if word & 0xfc000000 == 0x14000000 else 19)}
        page = (ip >> 12) + (signed(5, 19) << 2 | word >> 29 & 3) << 12
        to, of, by = register(low), register(base), register(index)
        shifted, extend = by | {"shift": shift}, by | {"extend": extended, "shift": word >> 10 & 7}
        forms = [
            (0xffffffe0, 0xd53bd040, "mrs", lambda: [to]),
            (0x9f000000, 0x90000000, "adrp", lambda: [register(low, 64), immediate(page)]),
            (0x7f800000, 0x11000000, "add", lambda: [to, of, immediate(imm12)]),
            (0x7f800000, 0x51000000, "sub", lambda: [to, of, immediate(imm12)]),
            (0x7f800000, 0x71000000, "subs", lambda: [to, of, immediate(imm12)]),
            (0x7fe00000, 0x0b000000, "add", lambda: [to, of, shifted]),
            (0x7fe00000, 0x4b000000, "sub", lambda: [to, of, shifted]),
            (0x7fe00000, 0x6b000000, "subs", lambda: [to, of, shifted]),
            (0x7fe00000, 0x0b200000, "add", lambda: [to, of, extend]),
            (0x7fe00000, 0x6b200000, "subs", lambda: [to, of, extend]),
            (0x7f800000, 0x12000000, "and", lambda: [to, of, immediate(bitmask())]),
            (0x7f800000, 0x53000000, "ubfm", lambda: [to, of, immediate(word >> 16 & 63), immediate(word >> 10 & 63)]),
            (0x7fe0ffe0, 0x2a0003e0, "mov", lambda: [to, by]),
            (0x7fe00000, 0x52800000, "mov", lambda: [to, immediate(word >> 5 & 0xffff)]),
            (0x7fe00c00, 0x1a800000, "csel", lambda: [to, of, by, {"condition": word >> 12 & 15}]),
            (0xbfc00000, 0xb9400000, "ldr", lambda: [register(low, memory()["bits"]), memory(scaled)]),
            (0xbfc00000, 0xb9000000, "str", lambda: [register(low, memory()["bits"]), memory(scaled)]),
            (0xbfe00c00, 0xb8400000, "ldr", lambda: [register(low, memory()["bits"]), memory(signed(12, 9))]),
            (0xbfe00c00, 0xb8000000, "str", lambda: [register(low, memory()["bits"]), memory(signed(12, 9))]),
            (0xbfe00c00, 0xb8600800, "ldr", lambda: [register(low, memory()["bits"]), memory(**load_index)]),
            (0xbfe00c00, 0xb8200800, "str", lambda: [register(low, memory()["bits"]), memory(**load_index)]),
            (0xbffffc00, 0x88dffc00, "ldr", lambda: [register(low, memory()["bits"]), memory()]),
            (0xfffffc00, 0xc85f7c00, "ldr", lambda: [register(low, 64), memory()]),
            (0xffe0fc00, 0xc8007c00, "stxr", lambda: [register(index, 32), register(low, 64), memory()]),
            (0xff000010, 0x54000000, "b.", lambda: [target, {"condition": word & 15}]),
            (0x7f000000, 0x34000000, "cbz", lambda: [target, to]),
            (0x7f000000, 0x35000000, "cbnz", lambda: [target, to]),
            (0xfc000000, 0x14000000, "b", lambda: [target]),
            (0xffffffff, 0xd503203f, "pause", lambda: []),
        ]
        for mask, fixed, name, operands in forms:
            if word & mask == fixed:
                return one | {"mnemonic": name, "operands": operands()}
        raise Unknown(f"`{one['text']}`: no meaning is known of it")

    @staticmethod
    def extended(value, extend, bits):
        """The low bits of a register, as wide as an operand."""
        if extend is None:
            raise Unknown("a register that is extended in another way")
        if extend < 0:
            return SignExt(bits + extend, Extract(-extend - 1, 0, value))
        return ZeroExt(bits - min(extend, bits), Extract(min(extend, bits) - 1, 0, value))

    def register(self, state, name):
        return BitVecVal(0, 64) if name == "X31" else state.register(name)

    def read(self, state, operand, bits):
        if "immediate" in operand:
            return BitVecVal(operand["immediate"], bits)
        value = Extract(bits - 1, 0, self.register(state, operand["register"]))
        if "extend" in operand:
            value = self.extended(self.register(state, operand["register"]), operand["extend"], bits)
        return value << operand["shift"] if operand.get("shift") else value

    def write(self, state, operand, value):
        if operand["register"] != "X31":
            state.registers[operand["register"]] = z3.simplify(ZeroExt(64 - operand["bits"], value))
            state.own.add(operand["register"])

    def address(self, state, operand):
        at = self.register(state, operand["base"]) + BitVecVal(operand["displacement"], 64)
        if operand["index"]:
            at = at + self.extended(self.register(state, operand["index"]), operand["extend"], 64) * operand["scale"]
        return at

    def step(self, state, instruction):
        """Runs it. `(condition, target)` of a jump, else None."""
        name, operands = instruction["mnemonic"].lower(), instruction["operands"]
        if name == "b":
            return BoolVal(True), operands[0]["target"]
        if name == "b.":
            return self.condition(state, operands[1]), operands[0]["target"]
        if name in ("cbz", "cbnz"):
            zero = self.read(state, operands[1], operands[1]["bits"]) == 0
            return zero if name == "cbz" else Not(zero), operands[0]["target"]
        getattr(self, "do_" + name)(state, *operands)
        return None

    def condition(self, state, operand):
        name = self.CONDITIONS.get(operand["condition"])
        if name is None:
            raise Unknown(f"no meaning is known of condition {operand['condition']}")
        return X86.CONDITIONS[name](state)

    def do_mrs(self, state, to):
        self.write(state, to, self.prover.thread_pointer)

    def do_adrp(self, state, to, page):
        self.write(state, to, self.read(state, page, 64))

    do_mov = lambda self, state, to, of: self.write(state, to, self.read(state, of, to["bits"]))

    def do_add(self, state, to, of, by):
        self.write(state, to, self.read(state, of, to["bits"]) + self.read(state, by, to["bits"]))

    def do_sub(self, state, to, of, by):
        self.write(state, to, self.read(state, of, to["bits"]) - self.read(state, by, to["bits"]))

    def do_subs(self, state, to, of, by):
        a, b = self.read(state, of, to["bits"]), self.read(state, by, to["bits"])
        # As x86-64 has it; the carry of aarch64 is the opposite, and so are its conditions.
        state.carry, state.zero = ULT(a, b), a == b
        self.write(state, to, a - b)

    def do_and(self, state, to, of, mask):
        self.write(state, to, self.read(state, of, to["bits"]) & self.read(state, mask, to["bits"]))

    def do_ubfm(self, state, to, of, right, top):
        bits, value = to["bits"], self.read(state, of, to["bits"])
        right, above = right["immediate"], bits - 1 - top["immediate"]
        # The field from bit `right` to bit `top`; or if that is below, the field up to `top`, moved to the left.
        field = LShR(value << above, above)
        self.write(state, to, LShR(field, right) if bits - 1 - above >= right else field << bits - right)

    def do_csel(self, state, to, of, by, condition):
        bits = to["bits"]
        self.write(state, to, If(self.condition(state, condition), self.read(state, of, bits), self.read(state, by, bits)))

    def do_ldr(self, state, to, of):
        self.write(state, to, self.prover.load(state, self.address(state, of), of["bits"], None))

    def do_str(self, state, of, to):
        self.prover.store(state, self.address(state, to), self.read(state, of, to["bits"]), to["bits"], None)

    def do_stxr(self, state, status, of, to):
        self.do_str(state, of, to)
        self.write(state, status, BitVec("status", 32))

    def do_pause(self, state):
        pass


MACHINES = {"x86_64": X86, "aarch64": Arm}


# ---- the proof ----

def occurs(part, term):
    return z3.eq(part, term) or any(occurs(part, child) for child in term.children())


class Prover:
    """One section, with one number of rounds."""

    def __init__(self, layout, machine, section, count):
        self.layout, self.section, self.kind, self.count = layout, section, section["kind"], count
        self.machine = machine(self)
        self.code = {one["ip"]: one for one in section["way_back"] + section["code"]}
        self.facts = []
        self.paths = self.aborts = 0
        self.contract()

    def contract(self):
        """Any registers, any memory; and what holds of them when a section begins."""
        operands = self.section["operands"]
        self.first = {name: BitVec(name, 64) for name in self.machine.REGISTERS}
        self.area, self.words, self.region = (BitVec(name, 64) for name in ("area", "words", "region"))
        self.stack = Concat(BitVecVal(0, 42), BitVec("stack", 19), BitVecVal(0, 3))
        self.rounds = BitVec("rounds", 64)
        for name in ["area", "words", "stack"] + ["rounds"] * (self.kind != "Pop"):
            self.first[operands[name]] = getattr(self, name)
        # What each register is that leads to memory.
        thread = self.area if self.machine.SEGMENTS else BitVec("thread", 64)
        # What `area` is counted from.
        self.thread_pointer = thread - self.area
        self.spaces = {"words": self.words, "region": self.region, "thread": thread}
        self.cpu = BitVec("cpu", 32)
        self.mem, self.thread, self.batch = region(), {}, {}
        rounds = []
        if self.kind == "Push":
            rounds = [self.rounds]
        elif self.count:
            self.first[operands["count"]] = BitVecVal(self.count, 64)
            self.spaces["batch"] = self.rounds
            rounds = [BitVec(f"round{i}", 64) for i in range(self.count)]
            self.batch = {8 * i: round for i, round in enumerate(rounds)}
        self.facts.append(UGE(self.stack, 16))
        self.spec = spec = Spec(self.layout, self.kind, self.mem, self.stack, rounds)
        if self.kind == "PushBatch":
            self.facts += [ULE(spec.cap, 0xffff), ULE(spec.limit, 0xffff)]
        if self.kind == "PopBatch":
            self.facts += [Implies(UGE(spec.len, self.count), round != 0) for round in spec.popped]

    def place(self, at, segment):
        """What an address leads to, and the offset in there."""
        for space, base in self.spaces.items():
            offset = z3.simplify(at - base, som=True)
            fits = not self.machine.SEGMENTS or bool(segment) == (space == "thread")
            if fits and not occurs(base, offset):
                return space, offset
        raise Refuted(f"an address that leads to nothing known: {z3.simplify(at)}")

    def always(self, state, claim, what):
        """Refuted unless `claim` follows on this path."""
        if z3.is_true(z3.simplify(claim)):
            return
        model = self.solve(*state.path, Not(claim))
        if model is not None:
            raise Refuted(f"{what}; {self.example(model)}")

    def solve(self, *claims):
        """A model of them, or None."""
        # Made anew: what solves many claims one after the other works on bits far slower.
        solver = z3.SolverFor("QF_AUFBV")
        solver.set("timeout", 900_000)
        solver.add(*self.facts, *claims)
        answer = solver.check()
        if answer == z3.unknown:
            raise Unknown(f"z3 does not know whether one of its {self.kind} claims holds ({solver.reason_unknown()})")
        return solver.model() if answer == z3.sat else None

    def example(self, model):
        names = ["len", "cap", "limit", "committed", "stack"]
        terms = [self.spec.len, self.spec.cap, self.spec.limit, self.spec.committed, self.stack]
        values = [f"{name} {model.eval(term, model_completion=True)}" for name, term in zip(names, terms)]
        return "for instance " + ", ".join(values) + f", {self.count or 1} rounds"

    def load(self, state, at, bits, segment):
        space, at = self.place(at, segment)
        if any(space == other and z3.eq(at, where) for other, where in state.loads):
            raise Refuted("reads a word twice")
        state.loads.append((space, at))
        if space == "region":
            return load(state.mem, at, self.within(state, at, bits))
        if space == "words":
            self.always(state, at == 8 * SignExt(32, self.cpu), "reads another CPU's word")
            return self.region
        at = self.constant(at)
        if space == "thread":
            if (at, bits) != (self.layout["CPU_ID"], 32):
                raise Refuted("reads what is not the CPU's number")
            return self.cpu
        if self.kind == "PopBatch":
            raise Refuted("reads what an aborted attempt may have written")
        return self.of_batch(state, at, bits)

    def store(self, state, at, value, bits, segment):
        space, at = self.place(at, segment)
        if space == "region":
            half = self.within(state, at, bits)
            state.mem = store(state.mem, at, value, half)
            state.stores.append((at, value, half))
        elif space == "words":
            raise Refuted("writes to the table's words")
        elif space == "thread":
            state.thread[self.constant(at), bits] = z3.simplify(value)
        else:
            at = self.constant(at)
            self.of_batch(state, at, bits)
            state.batch[at] = value

    def within(self, state, at, bits):
        """In the region, and aligned. Which half of a word it is, if it is none as a whole."""
        self.always(state, And(ULT(at, REACH), at & (bits // 8 - 1) == 0), "uses what is not aligned, or no region")
        if bits == 64:
            return None
        half = int(self.solve(*state.path, Extract(2, 2, at) == 0) is None)
        self.always(state, Extract(2, 2, at) == half, "uses now one half of a word and now the other")
        return half

    def of_batch(self, state, at, bits):
        if bits != 64 or at not in state.batch:
            raise Refuted("uses what is not of the batch")
        return state.batch[at]

    def constant(self, at):
        if not z3.is_bv_value(at):
            raise Refuted(f"an offset that is not constant: {at}")
        return at.as_long()

    def run(self):
        """All paths from the restart label."""
        section = self.section
        start = State(dict(self.first), self.mem, self.thread, self.batch)
        state, ip = start, section["restart"]
        while ip != section["start"]:
            instruction = self.code[ip]
            if self.machine.step(state, instruction) is not None:
                raise Refuted(f"`{instruction['text']}`: a jump in front of the start")
            ip = instruction["next"]
        if state.loads:
            raise Refuted("reads memory before its start, so not on that CPU")
        self.armed = {(self.layout["RSEQ_CS"], 64): BitVecVal(section["descriptor"], 64)}
        if str(state.thread) != str(self.armed) or not z3.eq(state.mem, self.mem):
            raise Refuted("does not announce its descriptor, and that alone, before its start")
        todo, ends, cuts = [(state, ip, 0)], [], []
        while todo:
            state, ip, steps = todo.pop()
            while ip in self.code and section["start"] <= ip < section["end"]:
                cuts.append((state.copy(), self.code[ip]))
                steps += 1
                if steps > STEPS:
                    raise Refuted("does not end")
                instruction = self.code[ip]
                try:
                    jump = self.machine.step(state, instruction)
                except Refuted as why:
                    raise Refuted(f"`{instruction['text']}`: {why}") from None
                ip = instruction["next"]
                if jump is None:
                    continue
                condition, target = z3.simplify(jump[0]), jump[1]
                if z3.is_true(condition):
                    ip = target
                elif not z3.is_false(condition):
                    if self.solve(*state.path, condition) is not None:
                        taken = state.copy()
                        taken.path.append(condition)
                        todo.append((taken, target, steps))
                    state.path.append(Not(condition))
                    if self.solve(*state.path) is None:
                        break
            else:
                ends.append((state, ip))
        extra = start.inputs - set(self.operands())
        if extra:
            raise Refuted(f"reads {', '.join(sorted(extra))}, which is no operand")
        for state, ip in ends:
            self.end(state, ip)
        # Each store is looked at once, directly behind it: what holds there holds on all ways from there.
        self.looked_at = set()
        for state, instruction in cuts:
            self.abort(state, instruction)
        self.way_back()
        self.empty()

    def operands(self):
        names = ["area", "words", "stack", "count"] + ["rounds"] * (self.kind != "Pop")
        return [self.section["operands"][name] for name in names if name in self.section["operands"]]

    def kept(self, state, what):
        for name in self.operands():
            self.always(state, state.registers[name] == self.first[name], f"{what}: the operand in {name} is another one")

    def end(self, state, ip):
        """A path's end: what the specification says, and nothing else."""
        section, spec = self.section, self.spec
        if ip not in (section["end"], section["miss"]):
            raise Refuted(f"goes on at {ip:#x}, neither done nor missed")
        self.paths += 1
        done = BoolVal(ip == section["end"])
        if self.kind == "Pop":
            round = state.registers[section["operands"]["rounds"]]
            self.always(state, round == spec.popped[0], "pops another round")
            done = round != 0
        if self.kind == "PopBatch":
            same = And(*[state.batch[8 * i] == round for i, round in enumerate(spec.popped)])
            self.always(state, Implies(done, same), "pops other rounds")
        self.always(state, done == spec.done, "is done, or misses, where the portable body does not")
        self.always(state, state.mem == spec.after, "leaves other memory than the portable body")
        self.others(state, "at its end")
        self.kept(state, "at its end")

    def abort(self, state, instruction):
        """Aborted in front of an instruction: nothing is left that a restart, or anybody else, reads."""
        spec, what = self.spec, f"aborted at `{instruction['text']}`"
        self.aborts += 1
        self.kept(state, what)
        self.others(state, what)
        for one in state.stores:
            if id(one) in self.looked_at:
                continue
            self.looked_at.add(id(one))
            at, value, half = one
            may = BoolVal(False)
            cap = spec.cap_of(state.mem)
            if self.kind in ("Push", "PushBatch") and half is None:
                # Above what is on the stack, in places that may be used now.
                may = And(UGT(at, spec.place(spec.len)), ULE(at, spec.place(ZeroExt(32, cap))))
            if self.kind == "PushBatch" and half == spec.halves[0]:
                legal = And(UGE(value, spec.cap), ULE(value, spec.limit), ULE(spec.end(value), spec.committed))
                may = And(at == spec.cap_at, legal)
            self.always(state, may, f"{what}: memory was written that a restart or somebody else reads")

    def others(self, state, what):
        if str(state.thread) != str(self.armed):
            raise Refuted(f"{what}: the thread's memory was written")
        if self.kind == "PushBatch" and any(not z3.eq(state.batch[at], round) for at, round in self.batch.items()):
            raise Refuted(f"{what}: the batch was written")

    def way_back(self):
        """From the abort address to the restart label no operand changes, and memory only where a counter lies."""
        section = self.section
        state = State(dict(self.first), self.mem, self.thread, self.batch)
        ip, stores = section["abort"], []
        self.store = lambda state, at, value, bits, segment: stores.append(z3.simplify(at))
        self.load = lambda state, at, bits, segment: BitVec("counter", bits)
        while ip != section["restart"]:
            instruction = self.code.pop(ip)
            jump = self.machine.step(state, instruction)
            # A jump back is of the counter's own loop.
            ip = jump[1] if jump and jump[1] in self.code else instruction["next"]
        del self.store, self.load
        if state.own & set(self.operands()) or not all(z3.is_bv_value(at) for at in stores):
            raise Refuted("the way back from an abort changes operands, or memory beside a counter")

    def empty(self):
        """In a region of zeros it misses and writes nothing."""
        spec = self.spec
        zero = [spec.head == 0, spec.cap == 0, spec.limit == 0, spec.committed == 0, load(self.mem, spec.place(0)) == 0]
        state = State({}, self.mem, self.thread, self.batch)
        state.path = zero
        self.always(state, And(Not(spec.done), spec.after == self.mem), "something is done in the empty region")


def prove(layout, machine, section, batches=BATCHES):
    """Paths and aborts of a section, or why it is refuted."""
    paths = aborts = 0
    for count in batches if "count" in section["operands"] else [0]:
        prover = Prover(layout, machine, section, count)
        prover.run()
        paths, aborts = paths + prover.paths, aborts + prover.aborts
    return paths, aborts


# ---- planted changes ----

NEIGHBOURS = {
    "Jae": "Ja", "Ja": "Jae", "Jb": "Jbe", "Jbe": "Jb", "Je": "Jne", "Jne": "Je",
    "Cmovb": "Cmovbe", "Cmova": "Cmovae", "Add": "Sub", "Sub": "Add", "Inc": "Dec", "Movsxd": "Mov",
    "add": "sub", "sub": "add", "cbz": "cbnz",
}
# lo, ls; hi, hs; eq, ne.
CONDITIONS = {3: 9, 9: 3, 8: 2, 2: 8, 0: 1, 1: 0}
# What is as good: the smaller one of two that are equal.
EQUIVALENT = {("Cmovb", "Cmovbe"), ("Cmova", "Cmovae")}


def planted(section):
    """Each with one instruction changed: `(what, whether it is as good, section)`."""
    ahead = [one for one in section["way_back"] if section["restart"] <= one["ip"] < section["start"]]
    for instruction in ahead + section["code"]:
        def changed(**with_):
            new = instruction | with_
            swap = lambda code: [new if one["ip"] == instruction["ip"] else one for one in code]
            return section | {"code": swap(section["code"]), "way_back": swap(section["way_back"])}
        text, name, operands = instruction["text"], instruction["mnemonic"], instruction["operands"]
        yield f"`{text}` left out", False, changed(mnemonic="Pause", operands=[])
        if name in NEIGHBOURS:
            other = NEIGHBOURS[name]
            if other == "Mov":
                half = operands[0] | {"bits": 32}
                yield f"`{text}` without its sign", False, changed(mnemonic=other, operands=[half, operands[1]])
            else:
                yield f"`{text}` as {other}", (name, other) in EQUIVALENT, changed(mnemonic=other)
        for i, operand in enumerate(operands):
            def moved(**with_):
                return operands[:i] + [operand | with_] + operands[i + 1:]
            if "condition" in operand:
                # As `EQUIVALENT`.
                other = moved(condition=CONDITIONS[operand["condition"]])
                yield f"`{text}` on its neighbour", name == "csel", changed(operands=other)
            if operand.get("extend") == -32:
                yield f"`{text}` without its sign", False, changed(operands=moved(extend=32))
            if "shift" in operand:
                yield f"`{text}` shifted by 1 more", False, changed(operands=moved(shift=operand["shift"] + 1))
            if "displacement" in operand:
                further = operand["displacement"] + 8 & (1 << 64) - 1
                yield f"`{text}` 8 bytes further", False, changed(operands=moved(displacement=further))
            if "immediate" in operand:
                yield f"`{text}` and 1", False, changed(operands=moved(immediate=operand["immediate"] + 1))
    if len(section["code"]) > 1:
        *code, one, commit = section["code"]
        swapped = [commit | {"ip": one["ip"], "next": one["next"]}, one | {"ip": commit["ip"], "next": commit["next"]}]
        yield "the commit comes one earlier", False, section | {"code": code + swapped}


def check_planted(layout, machine, section):
    """Each change is refuted; how many, and why."""
    why = Counter()
    for what, as_good, changed in planted(section):
        try:
            prove(layout, machine, changed, range(1, 3))
            reason = None
        except Refuted as refuted:
            reason = str(refuted)
        if as_good == (reason is not None):
            raise Refuted(f"planted, {what}: {reason or 'not refuted'}")
        why["as good" if as_good else "refuted"] += 1
    return why


def main(arguments):
    plant = arguments[:1] == ["--planted"]
    files = arguments[plant:]
    if not files or any(file.startswith("-") for file in files):
        print("prove.py: expected [--planted] FILE...", file=sys.stderr)
        return 2
    layout, known = None, {}
    total = Counter()
    for file in files:
        with open(file) as text:
            program = json.load(text)
        machine = MACHINES.get(program["architecture"])
        if machine is None:
            print(f"prove.py: {file}: {program['architecture']}: known are {', '.join(MACHINES)}", file=sys.stderr)
            return 2
        if layout is None:
            if "layout" not in program:
                print(f"prove.py: {file}: expected samples; name the magazines' own file first", file=sys.stderr)
                return 2
            layout = program["layout"]
            print(f"SPECIFICATION | {check_samples(layout, program['samples'])} samples of the portable bodies agree", flush=True)
        counts = Counter()
        for section in program["sections"]:
            for part in ("way_back", "code"):
                section[part] = [machine.decoded(one) for one in section[part]]
            name = f"{section['kind']} at {section['start']:#x}"
            try:
                if section["form"] not in known:
                    known[section["form"]] = prove(layout, machine, section)
                    if plant:
                        total.update(check_planted(layout, machine, section))
            except Refuted as why:
                print(f"REFUTED | {file} | {name} | {why}")
                return 1
            except Unknown as what:
                print(f"prove.py: {file}: {name}: {what}", file=sys.stderr)
                return 2
            paths, aborts = known[section["form"]]
            counts.update(sections=1, instructions=len(section["code"]), paths=paths, aborts=aborts)
        forms = len({section["form"] for section in program["sections"]})
        if not counts["sections"]:
            print(f"prove.py: {file}: there are no sections", file=sys.stderr)
            return 2
        print(
            f"SECTIONS {file} | {counts['sections']} in {forms} forms, {counts['instructions']} instructions"
            f" | {counts['paths']} paths as the portable body, {counts['aborts']} aborts that leave nothing", flush=True
        )
    if plant:
        print(f"PLANTED | {total['refuted']} changes refuted, {total['as good']} as good as what is there")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
