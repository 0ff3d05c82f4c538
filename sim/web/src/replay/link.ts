// What is looked at, in the page's address, and as a command line.

import type { Place } from '../machine.ts';
import type { Range } from './timeline.ts';

export interface Look {
  at: number;
  /** The chosen cache's name. */
  cache?: string;
  design: string;
  beside?: string;
  range?: Range;
  /** The followed object of the chosen cache. */
  object?: Omit<Place, 'cache'>;
}

export function written({ at, cache, design, beside, range, object }: Look): string {
  const to = new URLSearchParams({ at: String(at) });
  if (cache) to.set('cache', cache);
  if (design !== 'uslab') to.set('design', design);
  if (beside) to.set('beside', beside);
  if (range) to.set('range', range.join('-'));
  if (object) to.set('object', `${object.page}.${object.index}`);
  return `#${to}`;
}

/** What of it can be read; the rest is as when the page opens. */
export function read(hash: string): Partial<Look> {
  const from = new URLSearchParams(hash.slice(1));
  const numbers = (key: string) => from.get(key)?.match(/^(\d+)[-.](\d+)$/)?.slice(1).map(Number) as Range | undefined;
  const text = (key: string) => from.get(key) || undefined;
  const at = /^\d+$/.test(text('at') ?? '') ? Number(text('at')) : undefined;
  const [cache, design, beside, range, object] = [text('cache'), text('design'), text('beside'), numbers('range'), numbers('object')];
  return {
    ...(at !== undefined && { at }), ...(cache && { cache }), ...(design && { design }), ...(beside && { beside }),
    ...(range && { range }), ...(object && { object: { page: object[0], index: object[1] } }),
  };
}

/** Which prints the moment; the page knows what it was made with. */
export function command({ at, design }: Look): string {
  return `${document.body.dataset['command']} --at ${at}${design === 'uslab' ? '' : ` --design ${design}`} --json`;
}
