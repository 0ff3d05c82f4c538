// A story, and what is known after each of its steps.

import type { Change, Step, Story } from './story.ts';

/** A part of a thing, as it is known to be. */
export interface Known extends Change {
  /** The step that said so last, from 1. */
  step: number;
}

/** Which steps are shown: all, those that changed something, of one actor, of one thing. */
export type Filter = 'all' | 'changed' | `actor:${string}` | `thing:${string}`;

/** An atomic is a thing of its own. */
const thingOf = ({ thing, part }: Change): string => (thing ? `@${thing}` : part);

export class Model {
  readonly actors: readonly string[];
  /** What things are called, the one that it went wrong with first. */
  readonly things: ReadonlyMap<string, string>;
  /** Steps that had to do with each. */
  private readonly touched = new Map<string, number>();
  /** Which things have a part of that name. */
  private readonly owners = new Map<string, Set<number>>();

  constructor(readonly story: Story) {
    const names = (all: Iterable<string>) => [...new Set(all)].sort((a, b) => Number(a) - Number(b) || a.localeCompare(b));
    this.actors = names([...story.steps, ...story.waiting].map(({ thread }) => thread));
    const parts = new Map<string, Set<string>>();
    if (story.about != null) parts.set(`@${story.about}`, new Set());
    for (const { changes } of story.steps) {
      for (const key of new Set(changes.map(thingOf))) this.touched.set(key, (this.touched.get(key) ?? 0) + 1);
      for (const change of changes) {
        parts.set(thingOf(change), (parts.get(thingOf(change)) ?? new Set()).add(change.part));
        this.owners.set(change.part, (this.owners.get(change.part) ?? new Set()).add(change.thing));
      }
    }
    const several = (part: string) => this.owners.get(part)!.size > 1;
    this.things = new Map([...parts].filter(([, own]) => own.size).map(([key, own]) => [key, own.size === 1 && !several([...own][0]!) ? [...own][0]! : `${key}: ${[...own].join(', ')}`]));
  }

  /** Steps, and behind them the failure. */
  get last(): number {
    return this.story.steps.length + 1;
  }
  step(n: number): Step | undefined {
    return this.story.steps[n - 1];
  }
  /** What an actor plays: several, if it changes. */
  roles(actor: string): string[] {
    return [...new Set(this.story.steps.flatMap(({ thread, role }) => (thread === actor && role ? [role] : [])))];
  }
  /** Whether a step has to do with the thing that it went wrong with. */
  isAbout(n: number): boolean {
    const { about } = this.story;
    return about != null && !!this.step(n)?.changes.some(({ thing }) => thing === about);
  }

  /** What is known after `n` steps, in the order in which it came up. */
  after(n: number): Known[] {
    const known = new Map<string, Known>();
    this.story.steps.slice(0, n).forEach(({ changes }, i) => {
      for (const change of changes) {
        const key = `${change.thing} ${change.part}`;
        const own = known.get(key);
        if (own) Object.assign(own, change, { step: i + 1 });
        else known.set(key, { ...change, step: i + 1 });
      }
    });
    return [...known.values()].sort((a, b) => a.thing - b.thing);
  }

  /** Several things may have equal parts. */
  name({ thing, part }: Change): string {
    return this.owners.get(part)!.size > 1 ? `@${thing} ${part}` : part;
  }

  get filters(): [Filter, string][] {
    const things = [...this.things].filter(([key], i) => this.things.size <= 30 || i === 0 || this.touched.get(key)! > 1);
    return [
      ['all', 'all steps'], ['changed', 'steps that changed something'],
      ...this.actors.map((own): [Filter, string] => [`actor:${own}`, `thread ${own}`]),
      ...things.map(([key, name]): [Filter, string] => [`thing:${key}`, name.length > 40 ? `${name.slice(0, 39)}…` : name]),
    ];
  }
  /** The failure is always shown. */
  shows(n: number, filter: Filter): boolean {
    const step = this.step(n);
    if (!step || filter === 'all') return true;
    if (filter === 'changed') return step.changes.length > 0;
    const [what, own] = [filter.slice(0, 5), filter.slice(6)];
    return what === 'actor' ? step.thread === own : step.changes.some((change) => thingOf(change) === own);
  }
}
