// The engine in its WebAssembly instance.

import type { Answer, Lab as CourseLab } from './course.ts';
import type { Film, Outcome } from './scale/outcome.ts';
import type { About as Demo, Name, Race, Scene } from './scenes.ts';
import type { About, Found, Until, View } from './views.ts';

/** The heap had to grow, and linear memory cannot shrink again: begin anew with more reserved. */
export class Grew extends Error {}

/** What the instance exports: `sim/engine/src/exports.rs`. Lengths are of the last result, which lies at `text()`. */
interface Exports {
  memory: WebAssembly.Memory;
  room(bytes: number): number;
  text(): number;
  design(): number;
  open(cpus: number): number;
  open_script(): number;
  demos(): number;
  demo(): number;
  random_script(seed: number, commands: number): number;
  race(seed: number, requests: number): number;
  course(seed: number): number;
  answer(seed: number, question: number): number;
  reserve(bytes: number): void;
  about(): number;
  run(until: number): number;
  run_until(end: number): number;
  view(until: number): number;
  text_hash(): bigint;
  map(): number;
  sample(): number;
  check(): number;
  profiles(): number;
  back_to_back(cpus: number, profile: number): number;
  film(): number;
  page_hash(at: number, bytes: number): number;
}

/** Numbers of a sample that are about all caches: in use, cached, free in slabs, slabs; operations by path: depot, slab, pages, commit. */
export const SUMS = 8;
/** The paths of the last of them, the cheapest first. */
export const SLOW = ['depot', 'slab', 'pages', 'commit'] as const;

/** What CPUs do in virtual time: the options of `uslab scale`. */
export interface Work {
  cpus: number;
  workload: string;
  profile: string;
  size: number;
  /** Operations of each CPU. */
  ops: number;
  /** Nanoseconds of other work after each operation. */
  think: number;
  seed: number;
}

export class Engine {
  /** Operations that ran. */
  at = 0;
  readonly about: About;

  private constructor(readonly exports: Exports) {
    this.about = JSON.parse(this.text(exports.about()));
  }

  /** `stream` is columns, or a script as text. `reserve` bytes of heap are made at once. `design` is as `--design` has it. Columns run on so many CPUs; 0: on their own ones. */
  static async open(wasm: Wasm, stream: Uint8Array | string, reserve: number, design = 'uslab', cpus = 0): Promise<Engine> {
    const exports = await instance(wasm);
    const fine = (length: number) => {
      if (length) throw new Error(textOf(exports, length));
    };
    put(exports, new TextEncoder().encode(design));
    fine(exports.design());
    if (typeof stream === 'string') {
      put(exports, new TextEncoder().encode(stream));
      fine(exports.open_script());
    } else {
      put(exports, stream);
      fine(exports.open(cpus));
    }
    if (reserve) exports.reserve(reserve);
    return new Engine(exports);
  }

  /** A stream in virtual time, each CPU back to back, at the prices of a profile. */
  static async backToBack(wasm: Wasm, stream: Uint8Array, design: string, cpus: number, profile: string): Promise<Outcome> {
    const exports = await instance(wasm);
    put(exports, new TextEncoder().encode(design));
    const refused = exports.design();
    if (refused) throw new Error(textOf(exports, refused));
    const known: string[] = JSON.parse(textOf(exports, exports.profiles()));
    put(exports, stream);
    const told = textOf(exports, exports.back_to_back(cpus, known.indexOf(profile)));
    const { Ok: outcome, Err: wrong } = JSON.parse(told) as { Ok?: Outcome; Err?: string };
    if (!outcome) throw new Error(wrong);
    return outcome;
  }

  /** A generated workload in virtual time, operation by operation. */
  static async film(wasm: Wasm, design: string, work: Work): Promise<Film> {
    const exports = await instance(wasm);
    put(exports, new TextEncoder().encode(design));
    const refused = exports.design();
    if (refused) throw new Error(textOf(exports, refused));
    put(exports, new TextEncoder().encode(JSON.stringify(work)));
    const { Ok: film, Err: wrong } = JSON.parse(textOf(exports, exports.film())) as { Ok?: Film; Err?: string };
    if (!film) throw new Error(wrong);
    return film;
  }

  run(until: number): void {
    this.fine(this.exports.run(until));
    this.at = Math.max(this.at, until);
  }

  /** Runs until something happens, and no further than to `end`. */
  runUntil(until: Until, end: number): Found | null {
    put(this.exports, new TextEncoder().encode(JSON.stringify(until)));
    const found = JSON.parse(this.text(this.exports.run_until(end))) as Found | null;
    this.at = found?.operation ?? Math.max(this.at, end);
    return found;
  }

  /** The moment after operation n as JSON, with what it did if it has not run yet; `shown`: caches to see slab by slab. */
  view(n: number, shown: readonly number[]): string {
    put(this.exports, new Uint8Array(Uint32Array.from(shown).buffer));
    const text = this.text(this.exports.view(n));
    this.at = n;
    return text;
  }

  /** The sums; then in use, cached and served of each cache. */
  sample(): Float64Array {
    const at = this.exports.sample();
    return new Float64Array(this.exports.memory.buffer, at, SUMS + 3 * this.about.caches.length).slice();
  }

  /** A byte a page of memory: 0 free, 1 in per-CPU pages, 2 slab, 3 other. */
  map(): Uint8Array {
    const length = this.exports.map();
    return new Uint8Array(this.exports.memory.buffer, this.exports.text(), length);
  }

  /** Throws if an object or page is not where its state says. */
  check(): void {
    this.fine(this.exports.check());
  }

  /** Names of the cost profiles that there are. */
  profiles(): string[] {
    return JSON.parse(this.text(this.exports.profiles()));
  }

  private text(length: number): string {
    return textOf(this.exports, length);
  }
  private fine(length: number): void {
    if (length) throw new Error(this.text(length));
  }
}

/** The lab's demos, and the course. An instance of its own keeps nothing between two calls. */
export class Lab {
  readonly demos: readonly Demo[];

  private constructor(private readonly exports: Exports) {
    this.demos = JSON.parse(textOf(exports, exports.demos()));
  }
  static async open(wasm: Wasm): Promise<Lab> {
    return new Lab(await instance(wasm));
  }

  /** The scenes before the first command and after each. */
  play(name: Name, commands: readonly string[]): Scene[] {
    put(this.exports, new TextEncoder().encode([name, ...commands].join('\n')));
    return JSON.parse(textOf(this.exports, this.exports.demo()));
  }
  /** Random commands for a demo. */
  script(name: Name, seed: number, commands: number): string[] {
    put(this.exports, new TextEncoder().encode(name));
    return JSON.parse(textOf(this.exports, this.exports.random_script(seed, commands)));
  }
  /** The same requests at random to several allocators. */
  race(seed: number, requests: number): Race {
    return JSON.parse(textOf(this.exports, this.exports.race(seed, requests)));
  }
  /** The labs of the course, with the numbers that a seed makes. */
  course(seed: number): CourseLab[] {
    return JSON.parse(textOf(this.exports, this.exports.course(seed)));
  }
  /** What is right for a question of a lab, by its place from 0. */
  answer(seed: number, lab: string, question: number): Answer {
    put(this.exports, new TextEncoder().encode(lab));
    return JSON.parse(textOf(this.exports, this.exports.answer(seed, question)));
  }
}

/** Bytes, or compiled. */
export type Wasm = BufferSource | WebAssembly.Module;

async function instance(wasm: Wasm): Promise<Exports> {
  const made = wasm instanceof WebAssembly.Module ? await WebAssembly.instantiate(wasm, {}) : (await WebAssembly.instantiate(wasm, {})).instance;
  return made.exports as unknown as Exports;
}

function put(exports: Exports, bytes: Uint8Array): void {
  const at = exports.room(bytes.length);
  new Uint8Array(exports.memory.buffer, at, bytes.length).set(bytes);
}

function textOf(exports: Exports, length: number): string {
  return new TextDecoder().decode(new Uint8Array(exports.memory.buffer, exports.text(), length));
}

export const parsed = (text: string): View => JSON.parse(text);
