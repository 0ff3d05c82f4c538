// Buttons and keys.

import { $, grouped, made } from '../draw.ts';
import { CONDITIONS, type Condition } from './until.ts';
import { DESIGNS } from '../views.ts';
import type { Choice } from './run.ts';

/** What they do. */
export interface Actions {
  operations: number;
  cpus: number;
  toggle(): void;
  go(n: number): void;
  by(n: number): void;
  nextSlow(): void;
  runUntil(condition: Condition): void;
  stop(): void;
  zoom(factor: number | null): void;
  follow(): void;
  designs(design: string, beside: string, cpus: number): void;
  copy(what: 'link' | 'command'): void;
  save(as: 'png' | 'svg'): void;
  lecture(): void;
}

const SPEEDS = [0, 1, 10, 100, 1000, 10_000, 100_000]; // operations a second; 0: those of the cache on the stage, one at a time
const MANY = 1000; // operations with Shift

export class Controls {
  get speed(): number {
    return Number($<HTMLSelectElement>('speed').value);
  }

  constructor(actions: Actions) {
    const condition = $<HTMLSelectElement>('condition');
    $<HTMLSelectElement>('speed').append(...SPEEDS.map((n) => new Option(n ? `${grouped(n)} a second` : 'one at a time', String(n), !n, !n)));
    $('designs').append(...DESIGNS.map(([name, about]) => made('option', { value: name }, about)));
    $('of').textContent = `of ${grouped(actions.operations)}`;

    const keys: Record<string, (many: boolean) => void> = {
      ' ': () => actions.toggle(),
      ArrowRight: (many) => actions.by(many ? MANY : 1),
      ArrowLeft: (many) => actions.by(many ? -MANY : -1),
      Home: () => actions.go(0),
      End: () => actions.go(actions.operations),
      n: () => actions.nextSlow(),
      u: () => actions.runUntil(condition.value as Condition),
      f: () => actions.follow(),
      '+': () => actions.zoom(1 / 4),
      '-': () => actions.zoom(4),
      '0': () => actions.zoom(null),
      l: () => actions.copy('link'),
      c: () => actions.copy('command'),
      g: () => actions.save('png'),
      v: () => actions.save('svg'),
      p: () => actions.lecture(),
      Escape: () => actions.stop(),
    };
    for (const button of document.querySelectorAll<HTMLButtonElement>('button[data-key]'))
      button.onclick = (event) => keys[button.dataset['key']!]!(event.shiftKey);
    addEventListener('keydown', (event) => {
      const { tagName } = event.target as HTMLElement;
      const typing = ['INPUT', 'SELECT'].includes(tagName) || event.ctrlKey || event.metaKey || event.altKey;
      const pressing = event.key === ' ' && ['BUTTON', 'SUMMARY'].includes(tagName);
      const key = keys[event.key];
      if (!key || pressing || (typing && event.key !== 'Escape')) return;
      event.preventDefault();
      key(event.shiftKey);
    });

    const operation = $<HTMLInputElement>('operation');
    operation.onchange = () => {
      const n = Number(operation.value.replace(/\D/g, ''));
      operation.blur();
      actions.go(n);
    };
    const [design, beside, cpus] = [$<HTMLInputElement>('design'), $<HTMLInputElement>('beside'), $<HTMLInputElement>('cpus')];
    cpus.placeholder = String(actions.cpus);
    design.onchange = beside.onchange = cpus.onchange = () =>
      actions.designs(design.value.trim() || 'uslab', beside.value.trim(), Number(cpus.value.replace(/\D/g, '')));
  }

  /** Names of the chosen cache in what can be waited for. */
  choose(cache: string): void {
    const condition = $<HTMLSelectElement>('condition');
    const chosen = condition.value || 'miss';
    condition.replaceChildren(...CONDITIONS.map(([value, said]) => new Option(said(cache), value, false, value === chosen)));
  }

  playing(playing: boolean): void {
    $('playing').setAttribute('d', playing ? 'M3 2h4v12H3zM9 2h4v12H9z' : 'M4 2l10 6-10 6z');
    $('play').setAttribute('aria-label', playing ? 'Pause' : 'Play');
    $('said').setAttribute('aria-live', playing ? 'off' : 'polite');
  }

  searching(searching: boolean): void {
    $('stop').hidden = !searching;
  }

  show(operation: number, timeNs: number, choices: readonly Choice[], commands: readonly string[]): void {
    const input = $<HTMLInputElement>('operation');
    if (document.activeElement !== input) input.value = grouped(operation);
    $('clock').textContent = `${(timeNs / 1e9).toFixed(6)} s of the trace`;
    $('command').textContent = commands.join('\n');
    for (const [id, value] of [['design', choices[0]?.design], ['beside', choices[1]?.design], ['cpus', choices[1]?.cpus]] as const) {
      const own = $<HTMLInputElement>(id);
      if (document.activeElement !== own) own.value = String(value || '');
    }
  }
}
