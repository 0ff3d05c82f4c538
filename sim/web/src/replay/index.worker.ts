// The worker that runs the stream once, beside the page: samples for the time line, checkpoints for going back; or what it costs in virtual time.

import type { Wasm } from '../engine.ts';
import type { Outcome } from '../scale/outcome.ts';
import { Engine, Grew, Recorder, type Checkpoint } from './travel.ts';

export interface Job {
  wasm: Wasm;
  stream: Uint8Array;
  design: string;
  cpus: number;
  /** Bytes of heap. */
  reserve: number;
  /** For virtual time: what things cost. */
  profile?: string;
}

/** Points of the time line, and checkpoints: every run has them at the same operations. */
const SAMPLES = 480;
const CHECKPOINTS = 32;
const LEAST_BETWEEN = 5000;

export interface Sample {
  at: number;
  values: Float64Array;
}

/** It begins, with so much heap and a checkpoint after every so many operations; a part of the run; what went wrong. */
export type Told = { reserve: number; every: number } | { samples: Sample[]; checkpoint?: Checkpoint } | { error: string };

/** A run in virtual time, or what went wrong. */
export type Timed = { outcome: Outcome } | { error: string };

const tell = (told: Told | Timed, transfer: Transferable[] = []) => postMessage(told, { transfer });

async function index({ wasm, stream, design, cpus, reserve }: Job): Promise<void> {
  const engine = await Engine.open(wasm, stream, reserve, design, cpus);
  const recorder = new Recorder(engine);
  const { operations } = engine.about;
  const between = Math.max(1, Math.ceil(operations / SAMPLES));
  const every = Math.max(LEAST_BETWEEN, Math.ceil(operations / CHECKPOINTS));
  tell({ reserve, every });
  let samples: Sample[] = [];
  const point = () => samples.push({ at: engine.at, values: engine.sample() });
  point();
  for (let next = every; ; next += every) {
    while (engine.at + between < Math.min(next, operations)) {
      engine.run(engine.at + between);
      point();
    }
    if (next >= operations) break;
    engine.run(next);
    const checkpoint = recorder.checkpoint();
    point();
    tell({ samples, checkpoint }, [checkpoint.bytes.buffer]);
    samples = [];
  }
  recorder.finish();
  point();
  tell({ samples });
}

onmessage = async ({ data }: MessageEvent<Job>) => {
  for (const job = data; ; job.reserve *= 2) {
    try {
      const { profile } = job;
      if (profile) tell({ outcome: await Engine.backToBack(job.wasm, job.stream, job.design, job.cpus, profile) });
      else await index(job);
    } catch (error) {
      if (error instanceof Grew) continue;
      tell({ error: error instanceof Error ? error.message : String(error) });
    }
    return;
  }
};
