// Travel in time: back to a checkpoint of the engine's memory, then forward again. One engine records the checkpoints and another one of
// the same kind travels on them. Runs in a page and its worker and in node alike.

import { Engine, Grew } from '../engine.ts';

export { Engine, Grew };

const PAGE = 4096;
const CHUNK = 1024; // pages
const SPARE = 4 << 20; // bytes of heap that are left at the end, for views
const MOST = 384 << 20; // bytes of the engine's memory and of checkpoints
const LEAST = 64 << 20; // of them for checkpoints

/** What an engine's memory is after an operation: the pages that changed since the checkpoint before. */
export interface Checkpoint {
  at: number;
  pages: Uint32Array<ArrayBuffer>;
  bytes: Uint8Array<ArrayBuffer>;
}

/** Runs an engine, and finds out what changed. */
export class Recorder {
  private readonly length: number;
  private readonly hashes: Float64Array;

  /** The engine is at operation 0, and was asked for nothing yet. */
  constructor(private readonly engine: Engine) {
    this.length = engine.exports.memory.buffer.byteLength;
    this.hashes = Float64Array.from({ length: this.length / PAGE }, (_, page) => this.hash(page));
  }

  /** As memory is now. */
  checkpoint(): Checkpoint {
    const memory = memoryOf(this.engine, this.length);
    const pages: number[] = [];
    for (let page = 0; page < this.hashes.length; page++) {
      const hash = this.hash(page);
      if (hash === this.hashes[page]) continue;
      this.hashes[page] = hash;
      pages.push(page);
    }
    const bytes = new Uint8Array(pages.length * PAGE);
    pages.forEach((page, i) => bytes.set(memory.subarray(page * PAGE, (page + 1) * PAGE), i * PAGE));
    return { at: this.engine.at, pages: Uint32Array.from(pages), bytes };
  }

  /** The rest of the run. */
  finish(): void {
    this.engine.run(this.engine.about.operations);
    this.engine.exports.reserve(SPARE);
    memoryOf(this.engine, this.length);
  }

  private hash(page: number): number {
    return this.engine.exports.page_hash(page * PAGE, PAGE);
  }
}

type Version = [at: number, slot: number];

/** Room for pages. */
class Slots {
  readonly free: number[] = [];
  private made = 0;
  private readonly chunks: Uint8Array[] = [];

  put(bytes: Uint8Array): number {
    const slot = this.free.pop() ?? this.made++;
    this.get(slot).set(bytes);
    return slot;
  }
  get(slot: number): Uint8Array {
    const chunk = this.chunks[Math.floor(slot / CHUNK)] ??= new Uint8Array(CHUNK * PAGE);
    return chunk.subarray(slot % CHUNK * PAGE, (slot % CHUNK + 1) * PAGE);
  }
}

export class Travel {
  readonly operations: number;
  /** Bytes of pages that are kept. */
  kept = 0;
  /** Operations that ran again because somebody went back. */
  reran = 0;
  /** The last checkpoint's operation. */
  private newest = 0;
  private readonly most: number;
  /** Bytes of the engine's memory. */
  private readonly length: number;
  /** Page -> [operation, where its bytes are], oldest first; where it was zero at operation 0, there is none of that. */
  private readonly versions = new Map<number, Version[]>();
  private readonly slots = new Slots();

  /** With a checkpoint after every so many operations, of at most so many bytes. The engine is at operation 0. */
  constructor(readonly engine: Engine, public every: number, most?: number) {
    this.operations = engine.about.operations;
    const { buffer } = engine.exports.memory;
    this.length = buffer.byteLength;
    this.most = most ?? Math.max(MOST - this.length, LEAST);
    const words = new Int32Array(buffer), zero = (page: number) => {
      for (let i = page * PAGE / 4; i < (page + 1) * PAGE / 4; i++) if (words[i]) return false;
      return true;
    };
    for (let page = 0; page < this.length / PAGE; page++)
      if (!zero(page)) this.keep(0, page, new Uint8Array(buffer, page * PAGE, PAGE));
  }

  /** Bytes in all. */
  get memory(): number {
    return this.length + this.kept;
  }
  get checkpoints(): number {
    return Math.floor(this.newest / this.every);
  }

  /** They come in order. When they are too many, every second one goes. */
  take({ at, pages, bytes }: Checkpoint): void {
    this.newest = at;
    pages.forEach((page, i) => this.keep(at, page, bytes.subarray(i * PAGE, (i + 1) * PAGE)));
    while (this.kept > this.most && this.every < this.operations) this.thin();
  }

  /** A version takes the place of the one before, where all checkpoints see the later one. */
  private keep(at: number, page: number, bytes: Uint8Array): void {
    const versions = this.versions.get(page) ?? [];
    const before = versions.at(-1);
    if (before && this.first(before[0]) === this.first(at)) this.drop(versions.pop()!);
    versions.push([at, this.slots.put(bytes)]);
    this.versions.set(page, versions);
    this.kept += PAGE;
  }

  private drop([, slot]: Version): void {
    this.slots.free.push(slot);
    this.kept -= PAGE;
  }

  /** Half as many checkpoints. */
  private thin(): void {
    this.every *= 2;
    for (const [page, versions] of this.versions) {
      const stays = ([at]: Version, i: number) => i + 1 === versions.length || this.first(at) < this.first(versions[i + 1]![0]);
      versions.filter((version, i) => !stays(version, i)).forEach((version) => this.drop(version));
      this.versions.set(page, versions.filter(stays));
    }
  }

  /** The first checkpoint that a version from an operation is good for. */
  private first(at: number): number {
    return Math.ceil(at / this.every);
  }

  /** After operation n, as a run up to it would be. */
  to(n: number): void {
    const checkpoint = Math.min(Math.floor(n / this.every), this.checkpoints) * this.every;
    const { at } = this.engine;
    if (at > n || at < checkpoint || n === 0) {
      this.restore(checkpoint);
      this.reran += n - checkpoint;
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
    const memory = memoryOf(this.engine, this.length);
    memory.fill(0);
    for (const [page, versions] of this.versions) {
      const version = versions.findLast(([at]) => at <= checkpoint);
      if (version) memory.set(this.slots.get(version[1]), page * PAGE);
    }
    this.engine.at = checkpoint;
  }
}

/** All of it, which is as large as it was. */
function memoryOf({ exports: { memory: { buffer } } }: Engine, length: number): Uint8Array {
  if (buffer.byteLength !== length) throw new Grew();
  return new Uint8Array(buffer);
}
