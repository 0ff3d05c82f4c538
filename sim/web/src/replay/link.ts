// What is looked at, in the page's address, and as a command line.

import type { Place } from '../stage/moment.ts';
import { modelled, type Choice } from './run.ts';
import type { Range } from './timeline.ts';

export interface Look {
  at: number;
  /** The chosen cache's name. */
  cache?: string;
  design: string;
  beside?: string;
  /** CPUs of what is beside; those of the trace if left out. */
  cpus?: number;
  range?: Range;
  /** The followed object of the chosen cache. */
  object?: Omit<Place, 'cache'>;
}

export function written({ at, cache, design, beside, cpus, range, object }: Look): string {
  const to = new URLSearchParams({ at: String(at) });
  if (cache) to.set('cache', cache);
  if (design !== 'uslab') to.set('design', design);
  if (beside) to.set('beside', beside);
  if (cpus) to.set('cpus', String(cpus));
  if (range) to.set('range', range.join('-'));
  if (object) to.set('object', `${object.page}.${object.index}`);
  return `#${to}`;
}

/** What of it can be read; the rest is as when the page opens. */
export function read(hash: string): Partial<Look> {
  const from = new URLSearchParams(hash.slice(1));
  const numbers = (key: string) => from.get(key)?.match(/^(\d+)[-.](\d+)$/)?.slice(1).map(Number) as Range | undefined;
  const text = (key: string) => from.get(key) || undefined;
  const number = (key: string) => (/^\d+$/.test(text(key) ?? '') ? Number(text(key)) : undefined);
  const [at, cpus] = [number('at'), number('cpus')];
  const [cache, design, beside, range, object] = [text('cache'), text('design'), text('beside'), numbers('range'), numbers('object')];
  return {
    ...(at !== undefined && { at }), ...(cache && { cache }), ...(design && { design }), ...(beside && { beside }), ...(cpus && { cpus }),
    ...(range && { range }), ...(object && { object: { page: object[0], index: object[1] } }),
  };
}

/** Of a CPU count and a page size, which the page was made with. */
const MADE_WITH = / --(cpus|page-size) \S+/g;

/** Which print the moment of each; the page knows what it was made with. */
export function commands({ at }: Look, choices: readonly Choice[]): string[] {
  const made = document.body.dataset['command']!;
  return choices.map(({ design, cpus }) => {
    const replay = cpus ? `${made.replace(/ --cpus \S+/, '')} --cpus ${cpus}` : made;
    return `${replay} --at ${at}${design === 'uslab' ? '' : ` --design ${design}`} --json`;
  });
}

/** Which prints what runs cost in virtual time. */
export function scaling(choices: readonly { design: string; cpus: number }[], profile: string): string {
  const trace = document.body.dataset['command']!.replace(MADE_WITH, '').replace(/^uslab replay/, '').trim();
  const unique = (of: readonly (string | number)[]) => [...new Set(of)].join(',');
  return `uslab scale --trace ${trace ? `${trace} ` : ''}--cpus ${unique(choices.map(({ cpus }) => cpus))} `
    + `--design ${unique(choices.map(({ design }) => modelled(design)))} --profile ${profile}`;
}
