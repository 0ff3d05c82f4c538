// One design's run of the stream.

import { Engine, Grew, Travel } from './travel.ts';
import { parsed } from '../engine.ts';
import type { About, View } from '../views.ts';

/** Points of the time line, and checkpoints: every run has them at the same operations. */
const SAMPLES = 480;
const CHECKPOINTS = 32;
const LEAST_BETWEEN = 5000;

export interface Sample {
  at: number;
  values: Float64Array;
}

export class Run {
  private constructor(
    readonly design: string,
    readonly engine: Engine,
    readonly travel: Travel,
    readonly samples: readonly Sample[],
  ) {}

  get about(): About {
    return this.engine.about;
  }

  /** Runs the stream once: checkpoints for going back, samples for the time line. `told` hears how far it is, 0 to 1. */
  static async record(wasm: BufferSource, stream: Uint8Array, design: string, told: (share: number) => void): Promise<Run> {
    for (let reserve = 16 << 20; ; reserve *= 2) {
      try {
        return await Run.within(reserve, wasm, stream, design, told);
      } catch (error) {
        if (!(error instanceof Grew)) throw error;
      }
    }
  }

  private static async within(
    reserve: number, wasm: BufferSource, stream: Uint8Array, design: string, told: (share: number) => void,
  ): Promise<Run> {
    const engine = await Engine.open(wasm, stream, reserve, design);
    const { operations } = engine.about;
    const travel = new Travel(engine, Math.max(LEAST_BETWEEN, Math.ceil(operations / CHECKPOINTS)));
    const between = Math.max(1, Math.ceil(operations / SAMPLES));
    const samples: Sample[] = [];
    const point = () => samples.push({ at: engine.at, values: engine.sample() });
    const pointsTo = (end: number) => {
      while (engine.at + between < end) {
        engine.run(engine.at + between);
        point();
      }
    };
    const breathe = breather();
    point();
    do {
      pointsTo(Math.min((travel.newest + 1) * travel.every, operations));
      told(engine.at / operations);
      await breathe();
    } while (travel.record() && point());
    travel.finish();
    point();
    return new Run(design, engine, travel, samples);
  }

  /** The moment after operation n, with these caches slab by slab. */
  view(n: number, shown: readonly number[]): View {
    return parsed(this.travel.view(n, shown));
  }
}

/** To be awaited often: lets the page do something else each 50 ms. */
export function breather(): () => Promise<void> {
  let next = performance.now() + 50;
  return async () => {
    if (performance.now() < next) return;
    await new Promise((then) => setTimeout(then));
    next = performance.now() + 50;
  };
}
