// The page of a step that went wrong: recorded moments before it and at it, forward and back. No engine is in it.

import '../page.css';
import '../front/front.css';
import type { Failure } from '../course.ts';
import { $, made, noun, readColours } from '../draw.ts';
import { legend, memory, partsTable, wrongSaid } from '../front/memory.ts';
import { Picture, told } from '../front/moments.ts';
import { Stepper } from '../front/stepper.ts';
import { cacheTables, pagesTable } from '../twin.ts';

/** Bytes up to which a memory is one row; larger ones have eight. */
const ONE_ROW = 512;

const { lab, title, wrong, at: fails, object, blocks, cpus, caches, views, scenes } = JSON.parse($('failure').textContent) as Failure;
const last = Math.max(views.length, scenes.length) - 1;
const recording = { about: { cpus, caches, marks: [] }, design: '', views, maps: [] };
const picture = new Picture(recording, undefined, views[fails]?.steps.findLast(({ cache }) => cache !== null)?.cache ?? 0);
if (object) picture.stage?.mark(object[0], object[1]);
const where = (at: number) => `moment ${at + 1} of ${last + 1}${views[at] ? `: operation ${views[at].operation}` : ''}`;
const stepper = new Stepper('Moments', last, draw, undefined, where, fails);

function draw(at: number, on: boolean): void {
  const view = views[at], scene = scenes[at];
  // Made anew, so that it is said again.
  $('wrong').replaceChildren(at === fails ? made('p', { className: 'failed', role: 'alert' }, made('b', {}, '✗ Wrong here: '), wrong)
    : made('p', { className: 'failed' }, made('button', { type: 'button', title: 'To the failure (f)', onclick: () => stepper.go(fails) }, made('b', {}, `✗ Moment ${fails + 1}: `), wrong)));
  if (view) {
    $('said').replaceChildren(...told(view, [], 0, view.steps.map(({ sentence }) => sentence).join(' ')));
    picture.show(at, on);
    $('tables').replaceChildren(...(caches.length ? cacheTables(view, picture.chosen, caches[picture.chosen]!) : []), pagesTable(view.pages));
  } else if (scene) {
    const marked = at === fails ? blocks : [], bytes = scene.parts.reduce((sum, part) => sum + part.bytes, 0);
    const facts = [...scene.facts, ...(marked.length ? [['wrong', wrongSaid(scene, marked)] as const] : [])];
    const said = scene.said === wrong ? '' : scene.said || 'The beginning.';
    $('said').replaceChildren(said, said && scene.refused ? ' It was refused.' : '');
    $('picture').replaceChildren(made('section', { ariaLabel: 'Memory' }, memory(scene, bytes <= ONE_ROW ? 1 : 8, { wrong: marked }),
      made('dl', { className: 'facts' }, ...facts.flatMap(([name, value]) => [made('dt', {}, name), made('dd', {}, value)]))));
    $('kinds').replaceChildren(legend(scene.parts), ...(marked.length ? [made('p', { className: 'kinds' }, made('span', {}, made('i', { className: 'kind wrong' }), ' what is wrong'))] : []));
    $('tables').replaceChildren(partsTable(scene.parts));
  }
  history.replaceState(null, '', `#moment=${at + 1}`);
}

function open(): void {
  const asked = new URLSearchParams(location.hash.slice(1)).get('moment');
  stepper.go(asked === null ? fails : (Number(asked) || 1) - 1);
}

readColours();
$('title').textContent = `${title}; ${noun(last + 1, 'moment')} of lab ${lab}`;
document.title = `uslab failure: ${title}`;
$('time').prepend(stepper.root);
if (views.length) $('picture').append(picture.root);
if (object) $('kinds').append(made('p', {}, 'The ring marks the object that is wrong.'));
addEventListener('keydown', (event) => {
  const { target, key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || (target instanceof Element && target.matches('input'))) return;
  if (key === ' ' && target instanceof Element && target.matches('button, summary')) return;
  if (key === 'f') stepper.go(fails);
  else if (!stepper.key(key)) return;
  event.preventDefault();
});
addEventListener('hashchange', open);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  readColours();
  picture.stage?.redraw();
});
open();

/** For tests and consoles. */
Object.assign(window, { uslab: { ready: Promise.resolve(), view: () => ({ at: stepper.at, last, fails }) } });
