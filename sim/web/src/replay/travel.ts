// Travel in time: back to a checkpoint of the engine's memory, then forward again. Runs in a page and in node alike.

import { Engine, Grew } from '../engine.ts';

export { Engine, Grew };

const PAGE = 4096;

export class Travel {
  readonly operations: number;
  /** The last checkpoint. */
  newest = 0;
  /** Bytes of changed pages. */
  kept = 0;
  /** Operations that ran again because somebody went back. */
  reran = 0;
  /** Memory at operation 0. */
  private readonly first: Uint8Array;
  private readonly hashes: Float64Array;
  /** Page -> [checkpoint, its bytes], oldest first. */
  private readonly versions = new Map<number, [checkpoint: number, bytes: Uint8Array][]>();

  /** With a checkpoint after every so many operations. The engine is at operation 0. */
  constructor(
    readonly engine: Engine,
    readonly every: number,
  ) {
    this.operations = engine.about.operations;
    this.first = new Uint8Array(engine.exports.memory.buffer).slice();
    this.hashes = Float64Array.from({ length: this.first.length / PAGE }, (_, page) => this.hash(page));
  }

  /** Goes on to the next checkpoint and keeps the pages that changed. False when there is none before the end. */
  record(): boolean {
    const next = (this.newest + 1) * this.every;
    if (next >= this.operations) return false;
    this.engine.run(next);
    const memory = this.memory();
    this.newest++;
    for (let page = 0; page < this.hashes.length; page++) {
      const hash = this.hash(page);
      if (hash === this.hashes[page]) continue;
      this.hashes[page] = hash;
      const versions = this.versions.get(page) ?? [];
      versions.push([this.newest, memory.slice(page * PAGE, (page + 1) * PAGE)]);
      this.versions.set(page, versions);
      this.kept += PAGE;
    }
    return true;
  }

  /** The rest of the run, and then the end. */
  finish(): void {
    this.engine.run(this.operations);
    this.memory();
  }

  /** After operation n, as a run up to it would be. */
  to(n: number): void {
    const checkpoint = Math.min(Math.floor(n / this.every), this.newest);
    const { at } = this.engine;
    if (at > n || at < checkpoint * this.every || n === 0) {
      this.restore(checkpoint);
      this.reran += n - this.engine.at;
    }
    this.engine.run(n);
  }

  /** The moment after operation n as JSON, and what it did. */
  view(n: number, shown: readonly number[]): string {
    this.to(Math.max(n - 1, 0));
    return this.engine.view(n, shown);
  }

  /** Memory as it was at a checkpoint. A page that is the same at two may differ between them: all are written. */
  private restore(checkpoint: number): void {
    const memory = this.memory();
    memory.set(this.first);
    for (const [page, versions] of this.versions) {
      const version = versions.findLast(([made]) => made <= checkpoint);
      if (version) memory.set(version[1], page * PAGE);
    }
    this.engine.at = checkpoint * this.every;
  }

  /** All of it, which is as large as it was. */
  private memory(): Uint8Array {
    const { buffer } = this.engine.exports.memory;
    if (buffer.byteLength !== this.first.length) throw new Grew();
    return new Uint8Array(buffer);
  }
  private hash(page: number): number {
    return this.engine.exports.page_hash(page * PAGE, PAGE);
  }
}
