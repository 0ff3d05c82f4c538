// The first page: the allocator at work, and three doors.

import { made } from '../draw.ts';
import type { Shown } from './demo.ts';
import { SMALL } from './machines.ts';
import { Player } from './player.ts';
import { link, type Route } from './route.ts';

const BEGINS = 'Four CPUs';

/** Twenty seconds: a visit to the depot, an empty magazine, a slab from a page. */
const TOUR: readonly string[] = [
  'cpus 4', 'cache buffers 256', '# Memory for tables is committed', '0 alloc 17', '0 free 17', '1 alloc', '1 free', '2 alloc', '2 free', '3 alloc', '3 free', '0 shrink',
  '# Objects are allocated and freed beforehand', '0 alloc 32', '1 free 15', '2 alloc 3', '3 alloc 8', '0 free 2', '3 free 1',
  `# ${BEGINS} allocate and free. Each uses its own magazines: no lock.`, '0 alloc', '2 alloc', '1 free oldest', '0 alloc',
  '# A full magazine goes to the depot.', '1 free oldest',
  '# An empty CPU gets a magazine from the depot.', '0 alloc',
  '# CPUs go on without a lock.', '0 alloc', '3 alloc', '2 alloc',
  '# A page becomes a slab.', '3 alloc',
  '# Your turn: allocate and free on any CPU. Click an object in use to free it.',
];

const DOORS: readonly (readonly [href: string, title: string, text: string])[] = [
  ['replay.html', 'Watch a kernel', 'Every allocation and free of a Linux kernel, forward and back. Compare designs, such as Linux\'s SLUB.'],
  [link('play'), 'Play with an allocator', 'Magazines, buddies, TLSF, handles: drive each one by hand, step by step.'],
  [link('course'), 'Take the course', 'Predict what the allocator will do. It runs here and shows what it did.'],
];

export async function showStart(root: HTMLElement, wasm: WebAssembly.Module, { values }: Route): Promise<Shown> {
  const player = new Player(wasm, { name: 'start', begins: BEGINS, pause: 1800, changed });
  function changed(): void {
    const { lines, at } = player, changed = lines.join(';') !== TOUR.join(';');
    history.replaceState(null, '', link('start', { ...(changed && { do: lines.join(';') }), at: String(at) }));
  }
  root.replaceChildren(made('div', { className: 'first' }, made('h2', {}, 'A slab allocator at work ', made('span', { className: 'quiet' }, 'the real one, compiled into this page')), player.root),
    made('div', { className: 'doors' }, ...DOORS.map(([href, title, text]) => made('a', { className: 'card door', href }, made('h3', {}, title), made('p', {}, text)))));
  await player.attempt(() => player.run(values.get('do')?.split(';') ?? TOUR, SMALL));
  if (!player.views.length) await player.run(TOUR, SMALL);
  player.open(values.get('at'));
  return {
    view: () => ({ at: player.at, view: player.views[player.at] }),
    key: (key, event) => player.key(key, event.code, event.shiftKey),
    leave: () => player.leave(),
    redraw: () => player.redraw(),
    stage: () => player.stage,
  };
}
