// The first page: the allocator at work, and three doors.

import { made } from '../draw.ts';
import { nameOf, said, SHOWN, stream, telling } from './compare.ts';
import type { Shown } from './demo.ts';
import { Reel } from './film.ts';
import { SMALL } from './machines.ts';
import { Player } from './player.ts';
import { link, type Route } from './route.ts';
import { Sides } from './sides.ts';

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

/** Milliseconds of a frame; frames until it begins anew. */
const FRAME = 220, FRAMES = 120;

/** A small picture of designs side by side, which plays while it is on the screen. It is drawn when it is seen first. */
function comparison(wasm: WebAssembly.Module): { root: HTMLElement; leave(): void } {
  const place = made('div', { className: 'small' }), text = made('p', {}, 'The same program on four CPUs, in each design: who holds a lock, who waits, and what it costs.');
  const root = made('a', { className: 'card door wide', href: link('compare') }, made('h3', {}, 'Thirty years of allocators, side by side'), text, place);
  let sides: Promise<Sides> | null = null, timer = 0;
  const still = matchMedia('(prefers-reduced-motion: reduce)');
  const open = async () => {
    const designs = innerWidth < 700 ? [SHOWN[0]!, SHOWN.at(-1)!] : SHOWN, work = stream(), reels = await Promise.all(designs.map((design) => Reel.open(wasm, design, work)));
    const own = new Sides(reels, ({ design }) => made('b', {}, nameOf(design)));
    place.replaceChildren(own.root);
    return own;
  };
  const seen = new IntersectionObserver(async ([entry]) => {
    clearTimeout(timer);
    if (!entry?.isIntersecting) return;
    const own = await (sides ??= open()), first = telling(own);
    clearTimeout(timer);
    const show = (n: number) => {
      const at = first + n % FRAMES, moves = own.show(at, n % FRAMES > 0);
      text.textContent = said(own, at);
      if (!still.matches) timer = setTimeout(() => show(n + 1), Math.max(moves + 40, FRAME));
    };
    show(0);
  });
  seen.observe(root);
  return {
    root,
    leave: () => {
      seen.disconnect();
      clearTimeout(timer);
    },
  };
}

export async function showStart(root: HTMLElement, wasm: WebAssembly.Module, { values }: Route): Promise<Shown> {
  const player = new Player(wasm, { name: 'start', begins: BEGINS, pause: 1800, changed });
  function changed(): void {
    const { lines, at } = player, changed = lines.join(';') !== TOUR.join(';');
    history.replaceState(null, '', link('start', { ...(changed && { do: lines.join(';') }), at: String(at) }));
  }
  const door = comparison(wasm);
  root.replaceChildren(made('div', { className: 'first' }, made('h2', {}, 'A slab allocator at work ', made('span', { className: 'quiet' }, 'the real one, compiled into this page')), player.root),
    made('div', { className: 'doors' }, door.root, ...DOORS.map(([href, title, text]) => made('a', { className: 'card door', href }, made('h3', {}, title), made('p', {}, text)))));
  await player.attempt(() => player.run(values.get('do')?.split(';') ?? TOUR, SMALL));
  if (!player.views.length) await player.run(TOUR, SMALL);
  player.open(values.get('at'));
  return {
    view: () => ({ at: player.at, view: player.views[player.at] }),
    key: (key, event) => player.key(key, event.code, event.shiftKey),
    leave: () => {
      player.leave();
      door.leave();
    },
    redraw: () => player.redraw(),
    stage: () => player.stage,
  };
}
