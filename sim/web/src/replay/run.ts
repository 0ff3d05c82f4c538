// One design's run of the stream: an engine that goes anywhere, and what a worker finds out about the whole.

import Indexer from './index.worker.ts?worker&inline';
import type { Job, Sample, Timed, Told } from './index.worker.ts';
import { Engine, Travel } from './travel.ts';
import { noun } from '../draw.ts';
import { parsed } from '../engine.ts';
import type { Outcome } from '../scale/outcome.ts';
import type { About, View } from '../views.ts';

export type { Sample };

/** Who answers, on so many CPUs; 0: on those of the trace. */
export interface Choice {
  design: string;
  cpus: number;
}
export const same = (a: Choice, b: Choice) => a.design === b.design && a.cpus === b.cpus;

/** Bytes of heap that are made at once, besides the stream's. If they are too few, the worker begins anew with more. */
const RESERVE = 16 << 20;

export class Run {
  travel!: Travel;
  /** In order, as far as the worker is. */
  samples: Sample[] = [];
  /** When the worker is at the end. */
  indexed!: Promise<void>;

  private constructor(
    private readonly wasm: WebAssembly.Module, private readonly stream: Uint8Array, readonly choice: Choice,
  ) {}

  get name(): string {
    const { design, cpus } = this.choice;
    return cpus ? `${design} on ${noun(cpus, 'CPU')}` : design;
  }

  get engine(): Engine {
    return this.travel.engine;
  }
  get about(): About {
    return this.engine.about;
  }
  /** The last operation that can be gone to by now. */
  get reach(): number {
    return this.samples.at(-1)?.at ?? 0;
  }

  /** Begins, and comes back when there is a part of it. `told` hears of each further part. */
  static async open(wasm: WebAssembly.Module, stream: Uint8Array, choice: Choice, told: (run: Run) => void): Promise<Run> {
    const run = new Run(wasm, stream, choice);
    const worker = new Indexer();
    const job: Job = { wasm, stream, ...choice, reserve: RESERVE + stream.length };
    worker.postMessage(job);
    await new Promise<void>((begun, fail) => {
      run.indexed = new Promise<void>((done, fail) => {
        let heard = Promise.resolve();
        worker.onmessage = ({ data }: MessageEvent<Told>) => {
          heard = heard.then(() => run.hear(data)).then(() => {
            if (!run.samples.length) return;
            begun();
            told(run);
            if (run.reach === run.about.operations) done();
          });
          heard.catch(fail);
        };
        worker.onerror = ({ message }) => fail(new Error(message || 'the worker does not start'));
      }).finally(() => worker.terminate());
      run.indexed.catch(fail);
    });
    return run;
  }

  private async hear(told: Told): Promise<void> {
    if ('error' in told) throw new Error(told.error);
    if ('reserve' in told) {
      this.samples.length = Math.min(this.samples.length, 1);
      this.travel = new Travel(await Engine.open(this.wasm, this.stream, told.reserve, this.choice.design, this.choice.cpus), told.every);
      return;
    }
    if (told.checkpoint) this.travel.take(told.checkpoint);
    if (told.samples[0]!.at === 0) this.samples = [];
    this.samples.push(...told.samples);
  }

  /** What the whole run costs in virtual time, at the prices of a profile. The shipping allocator does not tell enough for that: its model stands in. */
  async costs(profile: string): Promise<Outcome> {
    const worker = new Indexer();
    const { design, cpus } = this.choice;
    const job: Job = { wasm: this.wasm, stream: this.stream, design: modelled(design), cpus, reserve: 0, profile };
    const told = new Promise<Outcome>((done, fail) => {
      worker.onmessage = ({ data }: MessageEvent<Timed>) => ('outcome' in data ? done(data.outcome) : fail(new Error(data.error)));
      worker.onerror = ({ message }) => fail(new Error(message || 'the worker does not start'));
    });
    worker.postMessage(job);
    return told.finally(() => worker.terminate());
  }

  /** The moment after operation n, with these caches slab by slab. */
  view(n: number, shown: readonly number[]): View {
    return parsed(this.travel.view(n, shown));
  }
}

/** A design that has a clock. */
export const modelled = (design: string) => design.replace(/^uslab(?=:|$)/, 'uslab-model');

/** To be awaited often: lets the page do something else each 50 ms. */
export function breather(): () => Promise<void> {
  let next = performance.now() + 50;
  return async () => {
    if (performance.now() < next) return;
    await new Promise((then) => setTimeout(then));
    next = performance.now() + 50;
  };
}
