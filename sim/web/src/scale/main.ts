// The page of a scale report: curves over CPUs.

import '../page.css';
import './scale.css';
import { $, grouped, made, noun } from '../draw.ts';
import { nav } from '../nav.ts';
import { BEYOND, MEASURES, said, type Measure } from './measures.ts';
import { line, picture, same, sample, type Axis, type Shown } from './picture.ts';
import { WORKLOADS, type Profile } from './outcome.ts';
import type { Curve, ScaleReport } from './report.ts';
import { legend, waiters, waitersSaid } from './waiters.ts';

const LINEAR = 'Dotted: “linear scaling to any number of CPUs”, which the abstract of Bonwick and Adams, “Magazines and Vmem” (USENIX, 2001), says of the magazine layer; drawn from the first point of magazines01.';

const START = 'Each run begins with an empty allocator, and that is in the curves: slabs are made and magazines filled, under locks that all CPUs share. “% beyond CPU” says how many operations did so; in a longer run they are fewer.';

class Page {
  private readonly report = JSON.parse($('report').textContent) as ScaleReport;
  private readonly designs = [...new Set(this.report.curves.map(({ design }) => design))];
  private readonly workloads = [...new Set(this.report.curves.map(({ workload }) => workload))];
  private readonly counts = [...new Set(this.report.curves.flatMap(({ points }) => points.map(({ cpus }) => cpus)))].sort((a, b) => a - b);
  private measure = MEASURES[0]!;
  private workload = this.workloads[0] ?? '';
  private off = new Set<string>();
  private log = { x: true, y: true };
  private cpus = this.counts.at(-1) ?? 1;
  private x: Axis | null = null;

  constructor() {
    const { profile, size, operations_per_cpu, seed } = this.report;
    nav('scale.html');
    $('number-keys').textContent = `1 to ${Math.min(this.designs.length, 9)}`;
    $('profile').textContent = profileSaid(profile);
    $('title').textContent = `predicted on profile ${profile.name}${size == null ? '' : `: ${grouped(operations_per_cpu ?? 0)} operations of each CPU on objects of ${size} bytes, seed ${seed}`}`;
    $<HTMLSelectElement>('measure').append(...MEASURES.map(({ key, name, unit }) => new Option(`${name} (${unit})`, key)));
    $<HTMLSelectElement>('workload').append(...this.workloads.map((name) => new Option(name, name)));
    $('designs').append(...this.designs.map((design, i) => {
      const box = made('input', { type: 'checkbox', onchange: () => this.toggle(design) });
      const swatch = made('span', { className: 'swatch', innerHTML: `<svg width="34" height="14" aria-hidden="true">${line(i, 'M1 7H33')}${sample(i, 17, 7, profile.validated_cpus > 0)}</svg>` });
      return made('label', {}, box, swatch, design, ...(i < 9 ? [' ', made('kbd', {}, String(i + 1))] : []));
    }));
    this.keys();
    new ResizeObserver(() => this.draw()).observe($('chart'));
    $('twin').addEventListener('toggle', () => this.draw());
    addEventListener('hashchange', () => this.open());
    this.open();
  }

  private keys(): void {
    const next = <T>(all: readonly T[], own: T): T => all[(all.indexOf(own) + 1) % all.length]!;
    const keys: Record<string, () => void> = {
      ArrowRight: () => this.read(1),
      ArrowUp: () => this.read(1),
      ArrowLeft: () => this.read(-1),
      ArrowDown: () => this.read(-1),
      Home: () => this.read(-Infinity),
      End: () => this.read(Infinity),
      m: () => this.set({ measure: next(MEASURES, this.measure) }),
      w: () => this.set({ workload: next(this.workloads, this.workload) }),
      x: () => this.set({ log: { ...this.log, x: !this.log.x } }),
      y: () => this.set({ log: { ...this.log, y: !this.log.y } }),
      l: () => void navigator.clipboard.writeText(location.href).catch(problem),
    };
    this.designs.slice(0, 9).forEach((design, i) => { keys[String(i + 1)] = () => this.toggle(design); });
    for (const button of document.querySelectorAll<HTMLButtonElement>('button[data-key]')) button.onclick = () => keys[button.dataset['key']!]!();
    addEventListener('keydown', (event) => {
      const target = event.target as HTMLElement;
      const typing = target.matches('select') || event.ctrlKey || event.metaKey || event.altKey;
      const key = keys[event.key];
      if (!key || typing) return;
      event.preventDefault();
      key();
    });
    const [measure, workload] = [$<HTMLSelectElement>('measure'), $<HTMLSelectElement>('workload')];
    measure.onchange = () => this.set({ measure: MEASURES.find(({ key }) => key === measure.value)! });
    workload.onchange = () => this.set({ workload: workload.value });
    for (const way of ['x', 'y'] as const) $(`${way}-log`).onchange = keys[way]!;
    $('chart').onpointermove = $('chart').onpointerdown = ({ clientX }) => {
      const at = clientX - $('chart').getBoundingClientRect().left;
      const far = (cpus: number) => Math.abs((this.x?.at(cpus) ?? 0) - at);
      const cpus = this.counts.reduce((best, own) => (far(own) < far(best) ? own : best), this.cpus);
      if (cpus !== this.cpus) this.set({ cpus });
    };
  }

  private open(): void {
    const asked = new URLSearchParams(location.hash.slice(1));
    const off = (asked.get('off') ?? '').split('~');
    this.set({
      measure: MEASURES.find(({ key }) => key === asked.get('measure')) ?? this.measure,
      workload: this.workloads.find((own) => own === asked.get('workload')) ?? this.workload,
      log: { x: asked.get('x') !== 'linear', y: asked.get('y') !== 'linear' },
      cpus: this.counts.find((own) => own === Number(asked.get('cpus'))) ?? this.cpus,
      off: new Set(this.designs.filter((own) => off.includes(own))),
    });
  }
  private set(to: Partial<{ measure: Measure; workload: string; log: { x: boolean; y: boolean }; cpus: number; off: Set<string> }>): void {
    Object.assign(this, to);
    this.draw();
    const { measure, workload, log, cpus, off } = this;
    const link = new URLSearchParams({ measure: measure.key, workload, cpus: String(cpus) });
    for (const way of ['x', 'y'] as const) if (!log[way]) link.set(way, 'linear');
    if (off.size) link.set('off', [...off].join('~'));
    history.replaceState(null, '', `#${link}`);
  }
  private toggle(design: string): void {
    const off = new Set(this.off);
    if (!off.delete(design)) off.add(design);
    this.set({ off });
  }
  private read(by: number): void {
    const at = Math.min(Math.max(this.counts.indexOf(this.cpus) + by, 0), this.counts.length - 1);
    this.set({ cpus: this.counts[at] ?? this.cpus });
  }

  private of(curve: Curve, measure: Measure): Shown {
    const points = curve.points.map((at) => ({ cpus: at.cpus, value: measure.of(at, curve.points[0]!) }));
    return { name: curve.design, number: this.designs.indexOf(curve.design), points };
  }
  private get shown(): Shown[] {
    return this.report.curves.filter(({ workload, design }) => workload === this.workload && !this.off.has(design)).map((curve) => this.of(curve, this.measure));
  }

  private draw(): void {
    const { report, measure, workload, log, cpus, shown } = this;
    const validated = report.profile.validated_cpus;
    $<HTMLSelectElement>('measure').value = measure.key;
    $<HTMLSelectElement>('workload').value = workload;
    for (const way of ['x', 'y'] as const) $<HTMLInputElement>(`${way}-log`).checked = log[way];
    this.designs.forEach((own, i) => { $('designs').querySelectorAll('input')[i]!.checked = !this.off.has(own); });
    $('about').textContent = `${measure.about} ${workloadSaid(workload)}`;
    const layer = measure.key === 'speed' && workload === 'pairs' ? shown.find(({ name }) => name === 'magazines01')?.points[0] ?? null : null;
    const { svg, x } = picture(shown, { width: Math.max(280, $('chart').clientWidth), unit: measure.unit, log, validated, cpus, linear: layer });
    this.x = x;
    $('chart').innerHTML = svg;
    const value = ({ points }: Shown) => points.find((point) => point.cpus === cpus)?.value;
    const rows = shown.toSorted((a, b) => (value(b) ?? -1) - (value(a) ?? -1));
    const equal = (own: Shown) => same(shown, own)?.name;
    const kind = cpus <= validated ? 'held against measurements' : 'simulated only';
    const words = rows.map((own) => `${own.name}: ${said(value(own)) || 'none'}`);
    const beyond = measure === BEYOND ? null : report.curves.filter((curve) => curve.workload === workload).map((curve) => this.of(curve, BEYOND));
    const chart = $('chart');
    chart.setAttribute('aria-valuemin', String(this.counts[0] ?? 1));
    chart.setAttribute('aria-valuemax', String(this.counts.at(-1) ?? 1));
    chart.setAttribute('aria-valuenow', String(cpus));
    chart.setAttribute('aria-valuetext', `${noun(cpus, 'CPU')}, ${kind}, ${measure.name} in ${measure.unit}: ${words.join(', ')}`);
    $('values').replaceChildren(made('table', {},
      made('caption', {}, `${noun(cpus, 'CPU')} `, made('span', { className: 'quiet' }, kind)),
      made('thead', {}, made('tr', {}, made('th', { scope: 'col' }, 'design'), made('th', { scope: 'col' }, measure.unit), ...(beyond ? [made('th', { scope: 'col' }, '% beyond CPU')] : []))),
      made('tbody', {}, ...rows.map((own) => made('tr', {},
        made('th', { scope: 'row', innerHTML: `<svg width="14" height="14" aria-hidden="true">${sample(own.number, 7, 7, cpus <= validated)}</svg>` }, ` ${own.name}`,
          ...(equal(own) ? [made('span', { className: 'quiet' }, ` = ${equal(own)}`)] : [])),
        made('td', {}, said(value(own))),
        ...(beyond ? [made('td', {}, said(value(beyond.find(({ name }) => name === own.name)!)))] : []))))));
    const at = (name: string) => report.curves.find((own) => own.workload === workload && own.design === name)?.points.find((point) => point.cpus === cpus);
    $('waiters').replaceChildren(made('h2', {}, 'Who waits'), ...rows.flatMap(({ name }) => {
      const own = at(name);
      return own ? [made('div', {}, made('b', {}, name), made('span', { innerHTML: waiters(own) }), made('span', {}, waitersSaid(own)))] : [];
    }), made('p', { className: 'quiet' }, legend(cpus)));
    if (!rows.length) $('values').append(made('p', { className: 'quiet' }, 'Every design is switched off.'));
    $('caption').textContent = (validated
      ? `Shaded, with filled marks: up to ${validated} CPUs the profile was compared with measurements; beyond them all numbers are simulated.`
      : 'All numbers are simulated: no machine was measured for this profile.') + (report.size === undefined ? '' : ` ${START}`) + (layer ? ` ${LINEAR}` : '');
    $('meaning').textContent = `Curves of ${noun(this.designs.length, 'design')}, each with a mark of its own; marks that are not filled are simulated only.${log.y ? ' On a logarithmic axis a value of 0 lies at the lower edge.' : ''}`;
    if ($<HTMLDetailsElement>('twin').open) this.tables();
  }

  /** Every measure of the workload, by CPUs. */
  private tables(): void {
    const curves = this.report.curves.filter(({ workload }) => workload === this.workload);
    const validated = this.report.profile.validated_cpus;
    $('twin-tables').replaceChildren(...MEASURES.map((measure) => made('div', { className: 'scroll' }, made('table', {},
      made('caption', {}, `${this.workload}: ${measure.name}, ${measure.unit}${validated ? '; * held against measurements' : ''}`),
      made('thead', {}, made('tr', {}, ...['design', ...this.counts.map((cpus) => `${cpus <= validated ? '*' : ''}${cpus}`)].map((name) => made('th', { scope: 'col' }, name)))),
      made('tbody', {}, ...curves.map((curve) => this.of(curve, measure)).map(({ name, points }) => made('tr', {},
        made('th', { scope: 'row' }, name),
        ...this.counts.map((cpus) => made('td', {}, said(points.find((point) => point.cpus === cpus)?.value))))))))));
  }

  view() {
    const { measure, workload, log, cpus, shown, counts } = this;
    return { measure: measure.key, workload, log, cpus, counts, curves: shown };
  }
}

/** What CPUs do; nothing is known of a trace but its name. */
function workloadSaid(text: string): string {
  const [name, n] = text.split('=');
  const does = WORKLOADS.find(([own]) => own.split('=')[0] === name)?.[1];
  if (!does) return `Workload ${text}: a recorded trace; each CPU does its own operations on objects.`;
  return `Workload ${text}: ${n ? does.replace(/ \(\d+\)$/, '').replace(/\bN\b/g, n) : does}.`;
}

function profileSaid({ name, own, lock, levels, validated_cpus: validated }: Profile): string {
  const lines = levels.map(({ cpus, line }) => `${line.ns} ns ${cpus ? `within ${cpus} CPUs` : levels.length === 1 ? 'from another CPU' : 'beyond'}`);
  return `Profile ${name}: what things cost on a machine. An operation that its CPU serves takes ${own.ns} ns, a free lock ${lock.ns} ns, and a cache line `
    + `comes in ${lines.join(', ')}. ${validated ? `These costs were measured, and curves from them were held against measurements on up to ${noun(validated, 'CPU')}.` : 'These costs are published numbers.'}`;
}

function problem(error: unknown): void {
  $('problem').textContent = error instanceof Error ? error.message : String(error);
}

const ready = Promise.resolve().then(() => new Page());
ready.catch((error: unknown) => problem(`The page does not start: ${error instanceof Error ? error.message : error}`));

/** For tests and consoles. */
Object.assign(window, { uslab: { ready: ready.then(() => undefined), view: async () => (await ready).view() } });
