// Every demo, each with a picture of it at work.

import { made } from '../draw.ts';
import type { Lab } from '../engine.ts';
import type { Scene } from '../scenes.ts';
import { pictured } from '../stage/stage.ts';
import { SCRIPTED } from './machines.ts';
import { recorded } from './moments.ts';
import { link } from './route.ts';
import { preview } from './shapes/shape.ts';

/** Pixels of a card's picture of a stage. */
const WIDE = 640, HIGH = 360;

const card = (href: string, title: string, text: string, picture?: Node): HTMLElement =>
  made('a', { className: 'card', href }, ...(picture ? [made('div', { className: 'small', ariaHidden: 'true' }, picture)] : []), made('h3', {}, title), made('p', {}, text));

export async function showPlay(root: HTMLElement, wasm: WebAssembly.Module, lab: Lab): Promise<void> {
  const comparisons = ['layout', 'fifty-percent', 'robson', 'pinning', 'slabs-over-buddy'];
  const demos = (own: (name: string) => boolean) => lab.demos.filter(({ name }) => own(name)).map(({ name, title, what, script, telling }) => {
    const [before, scene] = lab.play(name, script.slice(0, telling)).slice(-2) as [Scene, Scene];
    return card(link('demo', { name }), title, what, preview({ before, scene, done: scene.structure?.steps.length ?? 0 }));
  });
  const machines = await Promise.all(SCRIPTED.map(async ({ name, title, card: text, design, script, shows }) => {
    const recording = await recorded(wasm, script.join('\n'), design), { marks } = recording.about;
    const at = marks.findIndex((mark) => mark.text.startsWith(shows)), picture = made('div');
    picture.innerHTML = pictured(recording, (marks[at + 1]?.operation ?? recording.views.length) - 1, WIDE, HIGH);
    return card(link('machine', { name }), title, text, picture);
  }));
  root.replaceChildren(
    made('section', {}, made('h2', {}, 'The slab allocator'), made('p', { className: 'what' }, 'uslab as it ships, compiled into this page. What you see is what it does.'), made('div', { className: 'cards large' }, ...machines)),
    made('section', {}, made('h2', {}, 'Textbook allocators'), made('p', { className: 'what' }, 'Each one runs uslab\'s own code on a small memory. Play its script, then type any size.'),
      made('div', { className: 'cards' }, ...demos((name) => !comparisons.includes(name)))),
    made('section', {}, made('h2', {}, 'Comparisons'), made('div', { className: 'cards' }, ...demos((name) => comparisons.includes(name)),
      card(link('compare'), 'Side by side', 'One stream through two or three designs, from 1994 to today, in virtual time: who holds a lock, who waits.'),
      card(link('race'), 'Fragmentation race', 'The same requests to four allocators: which keeps its free memory in few pieces, and which fails first?'),
      card('scale.html', 'Scaling', 'Designs on 1 to 64 CPUs in virtual time: throughput, waits for locks, and cache lines that move between CPUs.'),
      card('story.html', 'A race that loom found', 'A planted bug in a magazine layer, and the order of two threads\' steps that breaks it, step by step.'),
      card(link('latency'), 'How long allocations take', 'Every allocation of four allocators by its time, recorded natively. The median hides the slowest.'))));
}
