// The same stream through two or three designs, side by side, in virtual time.

import { grouped, made, noun } from '../draw.ts';
import type { Wasm, Work } from '../engine.ts';
import { WORKLOADS } from '../scale/outcome.ts';
import type { Locks } from '../stage/moment.ts';
import type { Shown } from './demo.ts';
import { Reel, STEP } from './film.ts';
import { seedOf } from './kept.ts';
import { link, type Route } from './route.ts';
import { Sides } from './sides.ts';
import { Stepper } from './stepper.ts';

/** Designs as the page offers them, with containers of few objects: as few as show what happens. */
const DESIGNS: readonly (readonly [design: string, name: string, about: string])[] = [
  ['uslab-model:capacity=0', 'uslab without magazines', 'each operation at the slabs'],
  ['bonwick94', '1994', 'one list of slabs, one lock'],
  ['magazines01:magsize=8', '2001', 'magazines, a depot; slabs give one object'],
  ['slab:batchcount=8:limit=16', 'SLAB', 'Linux until 6.7: an array for each CPU'],
  ['slub', 'SLUB 6.12', 'own slabs for each CPU'],
  ['sheaves:sheaf_capacity=8', 'SLUB 7.x', 'sheaves for each CPU, a barn'],
  ['uslab-model:capacity=8:first_fill=8:stock=0', 'uslab', 'magazines, a depot; slabs give a magazine'],
];
export const SHOWN: readonly string[] = ['bonwick94', 'magazines01:magsize=8', 'uslab-model:capacity=8:first_fill=8:stock=0'];
export const nameOf = (design: string): string => DESIGNS.find(([own]) => own === design)?.[1] ?? design;

const PROGRAMS: readonly (readonly [workload: string, name: string])[] = [
  ['server=16', 'objects come and go at random'], ['remote=40', 'other CPUs free 40 of 100 objects'], ['bursts=12', '12 objects, then all are freed'], ['handoff=16', 'one CPU allocates, its neighbour frees'],
];
const LOCK: Record<keyof Locks, string> = { depot: 'the lock of what CPUs share', slabs: 'the lock of the slabs', pages: 'the lock of the pages' };

/** A stream: four CPUs, objects of 256 bytes, 60 operations of each CPU, and 50 ns of other work after each. */
export const stream = (workload = 'server=16', seed = 1): Work => ({ cpus: 4, workload, profile: 'milan2s', size: 256, ops: 60, think: 50, seed });
/** The same in a terminal. */
export const command = ({ cpus, workload, profile, size, ops, think, seed }: Work, designs: readonly string[]): string =>
  `uslab scale --cpus ${cpus} --workload ${workload} --size ${size} --ops ${ops} --think ${think} --seed ${seed} --profile ${profile} --design ${designs.join(',')}`;

/** Milliseconds that a frame stays if nothing moves: less if nothing happens at all. */
const STAY = 150, PAUSE = 60;
const SPEEDS = [0.25, 0.5, 1, 2, 4];

/** The frame that a comparison opens at: no design is finished, the start is over, and most CPUs of the first design wait. */
export function telling({ reels }: Sides): number {
  const [first] = reels, warm = Math.floor(Math.min(...reels.map(({ last }) => last)) / 3);
  const waiting = (n: number) => (first?.at(n).crew ?? []).filter(({ is }) => is === 'waits').length;
  const found = first?.frames.findIndex(({ crew }, n) => n >= warm && waiting(n) >= crew.length - 1) ?? -1;
  return found >= 0 ? found : warm;
}

/** What a frame is about, in one sentence: the design that has done most, the one that has done least, and who waits there. */
export function said({ reels }: Sides, at: number): string {
  const all = reels.map((reel) => ({ name: nameOf(reel.design), total: reel.film.outcome.operations, ended: at >= reel.last, ns: reel.film.outcome.ns, ...reel.at(at) }));
  const [best, worst] = [all.toSorted((a, b) => b.costs.operations - a.costs.operations || a.ns - b.ns)[0]!, all.toSorted((a, b) => a.costs.operations - b.costs.operations || b.ns - a.ns)[0]!];
  const time = (ns: number) => `${(ns / 1000).toFixed(2)} µs`, now = time(at * STEP);
  if (!at) return 'The same program begins on four CPUs, in each design: press play.';
  if (worst.ended) return `All are finished: ${all.toSorted((a, b) => a.ns - b.ns).map(({ name, ns }) => `${name} after ${time(ns)}`).join(', ')}.`;
  const waits = worst.crew.flatMap(({ waits }) => waits ?? []), [lock] = waits;
  const there = lock ? `, where ${grouped(waits.length)} of ${grouped(worst.crew.length)} CPUs ${waits.length === 1 ? 'waits' : 'wait'} for ${waits.every((own) => own === lock) ? LOCK[lock] : 'locks'}` : '';
  return best.costs.operations === worst.costs.operations ? `After ${now}, each design has done ${noun(best.costs.operations, 'operation')}${there}.`
    : `After ${now}, ${best.name} ${best.ended ? `is finished with all ${grouped(best.total)} operations` : `has done ${noun(best.costs.operations, 'operation')}`}, and ${worst.name} has done ${grouped(worst.costs.operations)}${there}.`;
}

/** What shapes mean, and in short. */
const LEGEND: readonly (readonly [shape: string, means: string, short: string])[] = [
  ['used', 'in use', 'in use'], ['cpu', 'free, held by a CPU', 'CPU\'s'], ['shared', 'free, shared by CPUs', 'shared'], ['slab', 'free in its slab', 'in slab'],
  ['page', 'page of a slab', 'slab page'], ['acting', 'CPU in the allocator', 'works'], ['held', 'CPU that holds the lock', 'locks'], ['waiting', 'CPU that waits for it', 'waits'],
];
const legend = (): HTMLElement => made('p', { className: 'means' }, ...LEGEND.map(([shape, means, short]) =>
  made('span', { className: shape === 'page' ? 'more' : '' }, made('i', { className: `chip ${shape}` }), made('span', { className: 'more' }, ` ${means}`), made('span', { className: 'less' }, ` ${short}`))));

export async function showCompare(root: HTMLElement, wasm: Wasm, { values }: Route): Promise<Shown> {
  let designs = values.get('designs')?.split(',').filter(Boolean).slice(0, 3) ?? (innerWidth < 700 ? [SHOWN[0]!, SHOWN[2]!] : [...SHOWN]);
  let work = stream(values.get('workload') ?? undefined);
  let sides: Sides | null = null, moved = 0;
  const problem = made('p', { className: 'problem', role: 'alert' }), sentence = made('p', { className: 'said' }), place = made('div', { className: 'place' });
  sentence.ariaLive = 'polite';
  const terminal = made('code'), status = made('span', { className: 'quiet', role: 'status' }), table = made('div', { className: 'scroll' });
  const speed = made('select', { ariaLabel: 'Speed', onchange: () => setSpeed() }, ...SPEEDS.map((n) => new Option(`${n} ×`, String(n), n === 1, n === 1)));
  const program = made('select', { ariaLabel: 'Program', onchange: () => void take({ ...work, workload: program.value }) }, ...PROGRAMS.map(([workload, name]) => new Option(name, workload)));
  const field = made('input', { inputMode: 'numeric', size: 6, ariaLabel: 'Seed' });
  const stepper = new Stepper('Virtual time', 0, (at, on) => draw(at, on), () => {
    const times = Number(speed.value), still = sides?.reels.every((reel) => stepper.at > reel.last || !reel.at(stepper.at).moment.view.steps.length);
    return Math.max(moved + PAUSE / times, (still ? PAUSE : STAY) / times);
  }, (at) => `${(at * STEP / 1000).toFixed(2)} µs`);
  const setSpeed = () => {
    if (sides) sides.speed = Number(speed.value);
  };
  const button = (text: string, title: string, act: () => void, className = '') => made('button', { type: 'button', title, onclick: act, className }, text);

  function draw(at: number, on: boolean): void {
    if (!sides) return;
    const own = sides;
    moved = own.show(at, on);
    sentence.textContent = said(own, at);
    history.replaceState(null, '', link('compare', { designs: designs.join(','), workload: work.workload, seed: String(work.seed), at: String(at) }));
  }

  /** The design above a stage, to be chosen. */
  function head({ design }: Reel, n: number): HTMLElement {
    const known = DESIGNS.some(([own]) => own === design), chosen = made('select', { ariaLabel: `Design ${n + 1}`, onchange: () => void change(n, chosen.value) },
      ...(known ? [] : [new Option(design, design)]), ...DESIGNS.map(([own, name, about]) => new Option(`${name}: ${about}`, own)));
    chosen.value = design;
    return chosen;
  }

  /** Runs a stream through designs. What cannot run changes nothing. */
  async function run(wanted: readonly string[], wish: Work, at: number | null): Promise<void> {
    const playing = stepper.playing, focus = document.activeElement?.getAttribute('aria-label');
    stepper.stop();
    try {
      const reels = await Promise.all(wanted.map((design) => Reel.open(wasm, design, wish)));
      sides = new Sides(reels, head);
      [designs, work] = [[...wanted], wish];
      problem.textContent = '';
    } catch (error) {
      problem.textContent = `${error instanceof Error ? error.message : error}.`;
    }
    [program.value, field.value] = [work.workload, String(work.seed)];
    if (!PROGRAMS.some(([own]) => own === work.workload)) {
      program.prepend(new Option(work.workload, work.workload));
      program.value = work.workload;
    }
    if (!sides) return;
    place.replaceChildren(sides.root);
    place.classList.toggle('three', designs.length > 2);
    more.textContent = designs.length > 2 ? 'two designs' : 'three designs';
    setSpeed();
    results();
    stepper.set(sides.last, at ?? telling(sides));
    if (focus && document.activeElement === document.body) root.querySelector<HTMLElement>(`[aria-label="${CSS.escape(focus)}"]`)?.focus();
    if (playing || at === null && !matchMedia('(prefers-reduced-motion: reduce)').matches) stepper.play();
  }
  /** A design that is on another stage changes places with this one's. */
  const change = (n: number, design: string) => run(designs.map((own, i) => (i === n ? design : own === design ? designs[n]! : own)), work, stepper.at);
  const take = (wish: Work) => run(designs, wish, null);
  const next = (n: number) => {
    const all = DESIGNS.map(([own]) => own), free = all.filter((own) => own === designs[n] || !designs.includes(own));
    return designs[n] === undefined ? undefined : change(n, free[(free.indexOf(designs[n]) + 1) % free.length]!);
  };
  const third = () => run(designs.length > 2 ? designs.slice(0, 2) : [...designs, [...SHOWN, ...DESIGNS.map(([own]) => own)].find((own) => !designs.includes(own))!], work, stepper.at);
  const fresh = () => take({ ...work, workload: work.workload.startsWith('server') || work.workload.startsWith('remote') ? work.workload : 'server=16', seed: (work.seed + 1) % 2 ** 32 });
  const seeded = () => {
    const seed = seedOf(field.value);
    if (typeof seed === 'number') return take({ ...work, seed });
    problem.textContent = seed;
    field.value = String(work.seed);
    return undefined;
  };
  field.onchange = () => void seeded();
  const copy = () => {
    const fail = () => (status.textContent = 'the address bar has the link');
    navigator.clipboard.writeText(location.href).then(() => (status.textContent = 'copied'), fail);
  };
  const more = button('', 'Two or three designs (t)', () => void third());

  /** What the whole runs cost. */
  function results(): void {
    if (!sides) return;
    terminal.textContent = command(work, designs);
    const head = ['design', 'finished after', 'operations/µs', 'locks taken', 'after waiting', 'waited', 'cache lines moved', 'slabs'];
    const row = (cell: 'th' | 'td', texts: readonly string[]) => made('tr', {}, ...texts.map((text, i) => made(i ? cell : 'th', {}, text)));
    table.replaceChildren(made('table', {}, made('caption', {}, 'Whole runs'), row('th', head), ...sides.reels.map((reel) => {
      const { outcome } = reel.film, { costs } = reel.at(reel.last);
      return row('td', [nameOf(reel.design), `${grouped(outcome.ns)} ns`, outcome.operations_per_us.toFixed(1), grouped(costs.locks), grouped(costs.contended), `${grouped(costs.waited)} ns`, grouped(costs.lines), grouped(outcome.slabs)]);
    })));
  }

  root.replaceChildren(
    made('div', { className: 'first compare' }, made('h2', {}, 'One stream, side by side ', made('span', { className: 'quiet' }, 'the same program on four CPUs, in simulated time: who holds a lock, who waits')),
      made('div', { className: 'player' }, place, legend(), sentence, problem,
        made('div', { className: 'bar hold' }, stepper.root, made('label', { className: 'speed' }, 'speed ', speed), button('new stream', 'Another seed (n)', () => void fresh(), 'fresh'),
          made('details', { className: 'menu' }, made('summary', {}, 'more'), made('div', {}, made('label', {}, 'program ', program), made('label', {}, 'seed ', field), more,
            button('copy link', 'The link keeps the designs, the stream and the time (l)', copy), status))))),
    made('section', {}, made('h3', {}, 'What is counted'),
      made('p', { className: 'what' }, 'Each design serves the same operations of four CPUs on objects of 256 bytes, each on its own clock in virtual time. A CPU works for 50 ns between two operations. A lock is held by one CPU at a time, and a CPU that finds it taken waits. ',
        'A cache line moves if another CPU wrote it last. Each run begins without slabs: they are made, and magazines filled, under locks that all CPUs share. The costs are those of profile milan2s: steps measured on a virtual machine, and published times of cache lines between cores of an AMD EPYC. All designs are models; the model of uslab is tested operation by operation against the shipping allocator.'),
      table, made('p', { className: 'copy' }, made('span', { className: 'quiet' }, 'the same in a terminal: '), terminal),
      made('p', { className: 'quiet' }, `Programs: ${WORKLOADS.filter(([name]) => PROGRAMS.some(([own]) => own.split('=')[0] === name.split('=')[0])).map(([name, does]) => `${name}, ${does}`).join('; ')}.`),
      made('p', { className: 'quiet' }, 'Keys: space plays and pauses, arrows step by 40 ns, Home and End go to the ends, 1 to 3 change a design, t shows two or three, n takes a new stream, l copies the link.')));
  const seed = seedOf(values.get('seed') ?? '1');
  if (typeof seed === 'number') work = { ...work, seed };
  const at = values.get('at'), asked = at === null ? null : Number(at) || 0;
  await run(designs, work, asked);
  if (!sides) {
    const wrong = problem.textContent;
    await run(SHOWN, stream(), asked);
    problem.textContent = wrong || (typeof seed === 'string' ? seed : '');
  }
  return {
    view: () => ({ at: stepper.at, work, sides: sides?.reels.map((reel) => ({ design: reel.design, last: reel.last, outcome: reel.film.outcome, crew: reel.at(stepper.at).crew, costs: reel.at(stepper.at).costs })) }),
    key: (key) => {
      const act = { n: fresh, t: third, l: copy, 1: () => next(0), 2: () => next(1), 3: () => next(2) }[key];
      if (!act) return stepper.key(key);
      void act();
      return true;
    },
    leave: () => stepper.stop(),
    redraw: () => sides?.redraw(),
    stage: () => sides?.stages[0] ?? null,
  };
}
