'use strict';
// The engine in its WebAssembly instance, and travel in time: back to a checkpoint of its memory, then forward again.
// Runs in a page and in node alike. Nothing here draws.

// The heap had to grow, and linear memory cannot shrink again: begin anew with more reserved.
class Grew extends Error {}

class Engine {
  // `wasm` and `stream` are bytes. `reserve` bytes of heap are made at once. `design` is as `--design` has it.
  static async open(wasm, stream, reserve = 0, design = 'uslab') {
    const { instance } = await WebAssembly.instantiate(wasm, {});
    const engine = new Engine(instance.exports);
    engine.put(new TextEncoder().encode(design));
    engine.fine(engine.e.design());
    engine.put(stream);
    engine.fine(engine.e.open());
    if (reserve) engine.e.reserve(reserve);
    engine.about = JSON.parse(engine.text(engine.e.about()));
    return engine;
  }
  constructor(e) {
    this.e = e;
    this.at = 0; // operations that ran
  }
  put(bytes) {
    const at = this.e.room(bytes.length);
    new Uint8Array(this.e.memory.buffer, at, bytes.length).set(bytes);
  }
  text(length) {
    return new TextDecoder().decode(new Uint8Array(this.e.memory.buffer, this.e.text(), length));
  }
  fine(length) {
    if (length) throw new Error(this.text(length));
  }
  run(n) {
    this.fine(this.e.run(n));
    this.at = n;
  }
  // The moment after operation n, with what it did if it has not run yet, as text; `shown`: caches to see slab by slab.
  view(n, shown) {
    this.put(new Uint8Array(Uint32Array.from(shown).buffer));
    const text = this.text(this.e.view(n));
    this.at = n;
    return text;
  }
  // In use, cached, free in slabs, slabs; then in use, cached and served of each cache.
  sample() {
    const at = this.e.sample();
    return new Float64Array(this.e.memory.buffer, at, 4 + 3 * this.about.caches.length).slice();
  }
  // A byte a page of memory: 0 free, 1 in per-CPU pages, 2 slab, 3 other.
  map() {
    const length = this.e.map();
    return new Uint8Array(this.e.memory.buffer, this.e.text(), length);
  }
  check() {
    this.fine(this.e.check());
  }
}

const PAGE = 4096;

class Travel {
  constructor(engine, every) {
    this.engine = engine;
    this.every = every; // operations between two checkpoints
    this.operations = engine.about.operations;
    this.first = new Uint8Array(engine.e.memory.buffer).slice(); // memory at operation 0
    this.hashes = Float64Array.from({ length: this.first.length / PAGE }, (_, page) => this.hash(page));
    this.versions = new Map(); // page -> [checkpoint, its bytes, checkpoint, its bytes, ...], oldest first
    this.newest = 0;
    this.kept = 0; // bytes of changed pages
  }
  hash(page) {
    return this.engine.e.page_hash(page * PAGE, PAGE);
  }
  // Goes on to the next checkpoint and keeps the pages that changed. False when there is none before the end.
  record() {
    const next = (this.newest + 1) * this.every;
    if (next >= this.operations) return false;
    this.engine.run(next);
    const { buffer } = this.engine.e.memory;
    if (buffer.byteLength !== this.first.length) throw new Grew();
    this.newest++;
    for (let page = 0; page < this.hashes.length; page++) {
      const hash = this.hash(page);
      if (hash === this.hashes[page]) continue;
      this.hashes[page] = hash;
      if (!this.versions.has(page)) this.versions.set(page, []);
      this.versions.get(page).push(this.newest, new Uint8Array(buffer, page * PAGE, PAGE).slice());
      this.kept += PAGE;
    }
    return true;
  }
  // Memory as it was at a checkpoint. A page that is the same at two may differ between them: all are written.
  restore(checkpoint) {
    const { buffer } = this.engine.e.memory;
    if (buffer.byteLength !== this.first.length) throw new Grew();
    const memory = new Uint8Array(buffer);
    memory.set(this.first);
    for (const [page, versions] of this.versions) {
      let low = 0; // how many of its versions are not newer
      for (let high = versions.length / 2; low < high;) {
        const middle = (low + high) >> 1;
        if (versions[2 * middle] <= checkpoint) low = middle + 1; else high = middle;
      }
      if (low > 0) memory.set(versions[2 * low - 1], page * PAGE);
    }
    this.engine.at = checkpoint * this.every;
  }
  // The moment after operation n, and what it did.
  view(n, shown) {
    const before = Math.max(n - 1, 0);
    const checkpoint = Math.min(Math.floor(before / this.every), this.newest);
    const { at } = this.engine;
    if (at > before || at < checkpoint * this.every || n === 0) this.restore(checkpoint);
    return this.engine.view(n, shown);
  }
}

globalThis.uslabTravel = { Engine, Travel, Grew };
