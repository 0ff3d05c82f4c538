// A long stream of operations: a stream again and again. What it leaves in use is freed in between, so that it needs no more memory.
// `sim/engine/src/stream.rs` has the format.

const [ALLOC, FREE, PASS, ALLOC_PAGES, FREE_PAGES, SPLIT_PAGES, SHRINK, START] = [0, 1, 2, 3, 4, 5, 6, 8];
const CODE = 15, NEW_CPU = 16; // of the byte of an action
const COLUMNS = 8; // what, CPU, cache, age, shape, block, bytes, time
const LARGE = 1;

/** The bytes of a stream that runs `times` times. */
export function repeated(bytes, times) {
  let at = 8;
  const get = (from = bytes, place = { at }) => {
    let n = 0, factor = 1, byte;
    do {
      byte = from[place.at++];
      n += (byte & 127) * factor;
      factor *= 128;
    } while (byte > 127);
    if (from === bytes) at = place.at;
    return n;
  };
  const skipText = () => { const length = get(); at += length; };
  get(); // version
  skipText();
  skipText();
  get(); // CPUs
  const head = bytes.subarray(0, at);
  const operations = get();
  const tail = at;
  get();
  for (let zones = get(); zones > 0; zones--) { at++; get(); }
  const large = Array.from({ length: get() }, () => {
    skipText();
    const kind = bytes[at++];
    for (const _ of ['size', 'sheaf capacity', 'first operation']) get();
    return kind === LARGE;
  });
  for (let marks = get(); marks > 0; marks--) { get(); skipText(); }
  const rest = bytes.subarray(tail, at);
  const columns = Array.from({ length: COLUMNS }, () => {
    const length = get();
    at += length;
    return bytes.subarray(at - length, at);
  });

  // What is left at the end: births that are still there.
  const places = columns.map(() => ({ at: 0 }));
  const next = (column) => get(columns[column], places[column]);
  const byte = (column) => columns[column][places[column].at++];
  const born = [new Set(), new Set()], births = [0, 0];
  const birth = (kind) => born[kind].add(births[kind]++);
  const death = (kind, age) => born[kind].delete(births[kind] - 1 - age);
  while (places[0].at < columns[0].length) {
    const what = byte(0), action = what & CODE;
    if (what & NEW_CPU) next(1);
    if (action === ALLOC || action === PASS) {
      if (large[next(2)]) next(6);
      if (action === ALLOC) birth(0);
    } else if (action === SHRINK) next(2);
    else if (action === START) {
      next(2);
      for (let used = next(6); used > 0; used--) birth(0);
      next(6);
    } else if (action === FREE) death(0, next(3));
    else if (action === ALLOC_PAGES) {
      byte(4);
      birth(1);
    } else if (action === FREE_PAGES) death(1, next(5));
    else if (action === SPLIT_PAGES) {
      const age = next(5), shape = byte(4);
      death(1, age);
      for (let part = 0; part < 1 << (shape >> 4); part++) birth(1);
    }
  }
  const put = (n) => {
    const to = [];
    for (; n >= 128; n = Math.floor(n / 128)) to.push(n % 128 | 128);
    return Buffer.from([...to, n]);
  };
  const ages = born.map((left, kind) => [...left].map((number) => put(births[kind] - 1 - number)));
  const freed = ages[0].length + ages[1].length;
  const more = [
    Buffer.concat([Buffer.alloc(ages[0].length, FREE), Buffer.alloc(ages[1].length, FREE_PAGES)]), [], [], Buffer.concat(ages[0]), [],
    Buffer.concat(ages[1]), [], Buffer.alloc(freed, 1),
  ];
  return Buffer.concat([head, put(times * (operations + freed)), rest, ...columns.flatMap((column, i) => {
    const one = Buffer.concat([column, Buffer.from(more[i])]);
    return [put(times * one.length), ...Array(times).fill(one)];
  })]);
}
