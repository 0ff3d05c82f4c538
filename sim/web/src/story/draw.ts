// The steps, the state beside them and the table, as elements.

import { made } from '../draw.ts';
import type { Known, Model } from './model.ts';
import type { Change, Step } from './story.ts';

/** Of page.css; an actor's name always stands beside its colour. */
const COLOURS = ['used', 'cached', 'depot', 'cpu-path', 'slab-path', 'commit-path'];
export const colour = (actor: number): string => `var(--${COLOURS[actor % COLOURS.length]})`;

export const who = ({ thread, role }: Step): string => `thread ${thread}${role ? `, ${role}` : ''}`;
export const time = ({ at }: Step): string => (at == null ? '' : `${at.toFixed(6)} s`);

/** What was, and what is. */
function values({ before, after }: Change): (Node | string)[] {
  return before == null ? [made('b', {}, after)] : [made('del', {}, before), ' → ', made('ins', {}, after)];
}

/** A sentence, and the place in the source at its end in a quiet type. */
export function sentence(did: string): (Node | string)[] {
  const place = did.match(/ at \S+:\d+(; it was made at \S+)?$/);
  return place ? [did.slice(0, place.index), made('span', { className: 'place' }, place[0])] : [did];
}

/** A row of the list: a step, or the failure behind the last one. */
export function row(model: Model, n: number, go: (n: number) => void): HTMLElement {
  const step = model.step(n);
  const button = made('button', { type: 'button', className: 'step', tabIndex: -1, onclick: () => go(n) });
  button.dataset['step'] = String(n);
  if (!step) {
    button.classList.add('failure');
    button.append(made('span', { className: 'no' }, '✗'), made('span', { className: 'what' }, `this check failed: “${model.story.end}”`));
  } else {
    const actor = model.actors.indexOf(step.thread);
    button.style.setProperty('--at', String(actor));
    button.style.setProperty('--actor', colour(actor));
    // An atomic's sentence has its values; where one object is in question, only its own changes are.
    const { about } = model.story;
    const changes = step.changes.filter(({ thing }) => (about == null ? thing : thing === about));
    button.append(
      made('span', { className: 'no' }, String(n)),
      made('span', { className: 'track' }, made('i')),
      made('span', { className: 'what' },
        made('span', { className: 'who' }, model.isAbout(n) ? '★ ' : '', who(step), ' '),
        made('span', { className: 'did' }, ...sentence(step.did)),
        ...changes.map((change) => made('span', { className: 'change' }, `Δ ${model.name(change)}: `, ...values(change)))),
    );
    if (model.isAbout(n)) button.classList.add('own');
  }
  return made('li', {}, button);
}

/** More parts than these are left out, the ones that changed long ago first. */
const MOST = 16;

export function state(model: Model, n: number, go: (n: number) => void): (Node | string)[] {
  const all = model.after(n);
  const { about } = model.story;
  const lately = (a: Known, b: Known) => Number(b.thing === about) - Number(a.thing === about) || b.step - a.step;
  const kept = new Set([...all].sort(lately).slice(0, MOST));
  const rows = all.filter((known) => kept.has(known)).map((known) => {
    const { step } = known;
    const changed = step === n;
    const back = made('button', { type: 'button', title: `To step ${step}`, onclick: () => go(step) }, `step ${step}`);
    return made('tr', { className: changed ? 'changed' : '' },
      made('th', { scope: 'row' }, changed ? 'Δ ' : '', known.thing === about ? '★ ' : '', model.name(known)),
      made('td', {}, ...(changed ? values(known) : [known.after])),
      made('td', {}, changed ? 'now' : back));
  });
  const waiting = n >= model.last ? model.story.waiting : [];
  const left = all.length - kept.size;
  return [
    ...(rows.length ? [made('table', {},
      made('thead', {}, made('tr', {}, ...['part', 'value', 'changed'].map((text) => made('th', { scope: 'col' }, text)))),
      made('tbody', {}, ...rows))] : [made('p', { className: 'quiet' }, 'Nothing is known yet: no step has said what it changed.')]),
    ...(left > 0 ? [made('p', { className: 'quiet' }, `And ${left} others that did not change lately.`)] : []),
    ...waiting.map(({ thread, lock, at }) => made('p', { className: 'waits' }, `⏳ thread ${thread} waits for ${lock} at ${at}`)),
  ];
}

export function table(model: Model): HTMLElement {
  const { steps, end } = model.story;
  const timed = steps.some(({ at }) => at != null);
  const said = (change: Change) => `${model.name(change)}: ${change.before == null ? '' : `${change.before} → `}${change.after}`;
  const cells = (step: Step, i: number) => [String(i + 1), ...(timed ? [time(step)] : []), who(step), step.did, step.changes.map(said).join('; ')];
  const line = (texts: string[]) => made('tr', {}, ...texts.map((text, i) => (i ? made('td', {}, text) : made('th', { scope: 'row' }, text))));
  return made('table', {}, made('caption', {}, `${model.story.title}; this check failed: “${end}”`),
    made('thead', {}, made('tr', {}, ...['step', ...(timed ? ['time'] : []), 'who', 'did', 'changed'].map((text) => made('th', { scope: 'col' }, text)))),
    made('tbody', {}, ...steps.map((step, i) => line(cells(step, i)))));
}
