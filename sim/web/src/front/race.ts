// The same requests to several allocators, side by side.

import { colours, grouped, made, sheet } from '../draw.ts';
import type { Lab } from '../engine.ts';
import type { Scene } from '../scenes.ts';
import type { Shown } from './demo.ts';
import { seedOf } from './kept.ts';
import { link, type Route } from './route.ts';
import { history as memoryOverTime, MEANS } from './shapes/history.ts';
import { Stepper } from './stepper.ts';

const REQUESTS = 200;
/** The request at which the page opens, and plays on. */
const FIRST = 20;
const CURVES = ['curve-1', 'curve-2', 'curve-3', 'curve-4'] as const;

/** The share of free bytes that one request cannot have, in per cent. */
const scattered = ({ holes: { total, largest } }: Scene): number => (total ? 100 * (1 - largest / total) : 0);

export function showRace(root: HTMLElement, lab: Lab, { values }: Route): Shown {
  let seed = 7, race = lab.race(seed, REQUESTS);
  const field = made('input', { inputMode: 'numeric', size: 11, value: String(seed), ariaLabel: 'Seed' });
  const problem = made('p', { className: 'problem', role: 'alert' }), line = made('code');
  const said = made('p', { className: 'said' });
  const racers = race.scenes.map(() => {
    const title = made('h3'), canvas = made('canvas', { role: 'img', className: 'history' });
    canvas.onclick = ({ offsetX }) => stepper.go(Math.round(offsetX / canvas.clientWidth * REQUESTS));
    return { title, canvas, root: made('div', { className: 'racer' }, title, canvas) };
  });
  const means = made('p', { className: 'kinds' }, ...MEANS.map(([kind, text]) => made('span', {}, made('i', { className: `kind history-${kind}` }), ` ${text}`)));
  const lanes = made('div', {}, made('h3', {}, 'The memory after each request, address 0 at the top'), means, ...racers.map(({ root }) => root)), chart = made('canvas', { role: 'img' });
  const table = made('table');
  const stepper = new Stepper('Requests', REQUESTS, () => draw(), () => 120);

  /** Whether it is a seed; if not, it says so, and nothing changes. */
  function take(text: string): boolean {
    const wanted = seedOf(text), fine = typeof wanted === 'number';
    problem.textContent = fine ? '' : wanted;
    if (fine) [seed, race] = [wanted, lab.race(wanted, REQUESTS)];
    field.value = String(seed);
    return fine;
  }

  function draw(): void {
    const { at } = stepper;
    const command = race.commands[at - 1];
    said.textContent = command ? `Request ${at}: ${command}.` : 'All memories are empty: 1,024 bytes each.';
    race.scenes.forEach(([name, scenes], i) => {
      const scene = scenes[at]!, { title, canvas } = racers[i]!;
      title.replaceChildren(name, made('span', { className: 'quiet' }, scene.said));
      memoryOverTime(canvas, scenes, at);
      canvas.setAttribute('aria-label', `${name}: the memory after each of ${at} requests; ${scene.holes.count} free pieces now`);
    });
    const head = ['allocator', 'refused so far', 'free bytes', 'pieces', 'largest', 'scattered'];
    const least = Math.min(...race.scenes.map(([, scenes]) => Math.round(scattered(scenes[at]!))));
    table.replaceChildren(made('tr', {}, ...head.map((text) => made('th', { scope: 'col' }, text))), ...race.scenes.map(([name, scenes]) => {
      const { holes } = scenes[at]!;
      const refused = scenes.slice(1, at + 1).filter((scene, i) => scene.refused && race.commands[i]!.startsWith('alloc')).length;
      const cells = [refused, holes.total, holes.count, holes.largest].map(grouped);
      const share = Math.round(scattered(scenes[at]!));
      return made('tr', {}, made('th', { scope: 'row' }, name), ...cells.map((text) => made('td', {}, text)),
        made('td', {}, share === least ? made('b', {}, `${share} %`) : `${share} %`));
    }));
    drawChart();
    line.textContent = `uslab lab demo tlsf --random ${REQUESTS} --seed ${seed}`;
    history.replaceState(null, '', link('race', { seed: String(seed), at: String(at) }));
  }

  function drawChart(): void {
    const narrow = chart.clientWidth < 500, names = narrow ? 0 : 90, top = narrow ? 44 : 8;
    const { g, width, height } = sheet(chart, 160 + top - 8);
    const left = 40, bottom = height - 18, x = (at: number) => left + at / REQUESTS * (width - left - names), y = (share: number) => top + (1 - share / 100) * (bottom - top);
    g.fillStyle = colours.quiet;
    for (const share of [0, 50, 100]) g.fillText(`${share} %`, 0, y(share) + 4);
    race.scenes.forEach(([name, scenes], i) => {
      g.strokeStyle = colours[CURVES[i]!];
      g.fillStyle = colours.ink;
      g.lineWidth = 1.5;
      g.beginPath();
      scenes.forEach((scene, at) => g.lineTo(x(at), y(scattered(scene))));
      g.stroke();
      g.beginPath();
      // Their names: behind the curves, or above them in two columns.
      const [across, down] = narrow ? [left + (i % 2) * (width - left) / 2, 10 + Math.floor(i / 2) * 16] : [width - 84, 10 + i * 16];
      g.moveTo(across, down);
      g.lineTo(across + 24, down);
      g.stroke();
      g.fillText(name, across + 30, down + 4);
    });
    g.strokeStyle = colours.now;
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(x(stepper.at), top - 4);
    g.lineTo(x(stepper.at), bottom);
    g.stroke();
    chart.setAttribute('aria-label', `Scattered free memory after ${stepper.at} requests: ${race.scenes.map(([name, scenes]) => `${name} ${Math.round(scattered(scenes[stepper.at]!))} %`).join(', ')}`);
  }
  chart.onclick = ({ offsetX }) => stepper.go(Math.round((offsetX - 40) / (chart.clientWidth - (chart.clientWidth < 500 ? 40 : 130)) * REQUESTS));
  field.onchange = () => {
    if (take(field.value)) stepper.go(0);
  };
  const given = values.get('seed');
  if (given !== null) take(given);
  root.replaceChildren(made('section', {}, made('h2', {}, 'Fragmentation race'),
    made('p', { className: 'what' }, 'The same requests, of 8 to 127 bytes and freed in any order. Which allocator keeps its free memory in few pieces, and which refuses a block first? An allocator does not free a block that it refused, so the loads differ.'),
    stepper.root, made('div', { className: 'bar' }, made('label', {}, 'seed ', field), made('span', { className: 'copy' }, made('span', { className: 'quiet' }, 'one of them in a terminal: '), line)),
    problem, said, lanes, made('h3', {}, 'Scattered: free memory outside the largest free piece'), chart, made('div', { className: 'scroll' }, table)));
  requestAnimationFrame(() => {
    const at = values.get('at');
    if (at !== null) stepper.go(Number(at) || 0);
    else if (matchMedia('(prefers-reduced-motion: reduce)').matches) stepper.go(REQUESTS);
    else {
      stepper.go(FIRST);
      stepper.play();
    }
  });
  return { view: () => ({ at: stepper.at, race }), key: (key) => stepper.key(key), leave: () => stepper.stop() };
}
