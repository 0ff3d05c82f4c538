// How long allocations took: recorded natively, for a page has no clock that is fine enough.

import { drawing, grouped, made, noun, svg } from '../draw.ts';
import type { Shown } from './demo.ts';
import { link, type Route } from './route.ts';

/** Of what `uslab lab latency --json` writes. */
interface Findings {
  machine: { processor: string; cpus: number; system: string; libc: string; compiler: string };
  seed: number;
  parts: readonly { chart?: { title: string; series: readonly { name: string; points: readonly (readonly [ns: number, count: number])[] }[] } }[];
}

const HIGH = 74, FOOT = 18, LEFT = 44; // pixels
const DECADES = [10, 100, 1000, 1e4, 1e5, 1e6, 1e7];

const said = (ns: number): string => (ns >= 1e6 ? `${Number((ns / 1e6).toPrecision(3))} ms` : ns >= 1000 ? `${Number((ns / 1000).toPrecision(3))} µs` : `${Math.round(ns)} ns`);

export function showLatency(root: HTMLElement, findings: Findings, { values }: Route): Shown {
  const { machine } = findings;
  const rows = findings.parts.flatMap(({ chart }) => (chart?.title.startsWith('Allocations that took so long') ? chart.series : []))
    .map(({ name, points }) => ({ name, points, all: points.reduce((sum, [, count]) => sum + count, 0) }));
  const times = rows.flatMap(({ points }) => points.map(([ns]) => ns));
  const [low, high] = [Math.log2(Math.min(...times)), Math.log2(Math.max(...times)) + 0.25];
  const most = Math.max(...rows.map(({ all }) => all));
  const counted = [...new Set(rows.map(({ all }) => all))].sort((a, b) => a - b).filter((_, i, all) => i === 0 || i === all.length - 1).map(grouped).join(' to ');
  const y = (count: number) => HIGH * Math.log10(count + 1) / Math.log10(most + 1);

  const slider = made('input', { type: 'range', min: '0', max: '1000', value: values.get('at') ?? '700', ariaLabel: 'Slower than' });
  const limit = made('output', { className: 'limit' }), pictures = made('div', { className: 'latency' }), table = made('table', { className: 'times' });

  /** The lower end of a bin. */
  const at = (): number => {
    const bins = [...new Set(times)].sort((a, b) => a - b);
    const wanted = 2 ** (low + Number(slider.value) / 1000 * (high - low));
    return bins.findLast((bin) => bin <= wanted) ?? bins[0]!;
  };

  function draw(): void {
    const from = at();
    limit.textContent = `${said(from)} or more`;
    const counts = rows.map(({ points }) => points.reduce((sum, [ns, count]) => sum + (ns >= from ? count : 0), 0));
    const share = (i: number) => (counts[i] ? `one in ${grouped(rows[i]!.all / counts[i]!)}` : 'none');
    pictures.replaceChildren(...rows.map(({ name, points, all }, i) => made('div', {}, made('h3', {}, name, made('span', { className: 'quiet' }, `${share(i)} took ${said(from)} or more`)), bars(points, from, `${name}: ${noun(all, 'allocation')}, ${share(i)} took ${said(from)} or more`))));
    const quantile = ({ points, all }: (typeof rows)[number], part: number) => {
      let left = all * (1 - part);
      return points.findLast(([, count]) => (left -= count) < 0)?.[0] ?? points[0]![0];
    };
    const head = ['allocator', 'allocations', 'median', '1 in 100 took', '1 in 10,000 took', `${said(from)} or more`];
    table.replaceChildren(made('tr', {}, ...head.map((text) => made('th', { scope: 'col' }, text))), ...rows.map((row, i) => made('tr', {}, made('th', { scope: 'row' }, row.name),
      ...[grouped(row.all), ...[0.5, 0.99, 0.9999].map((part) => said(quantile(row, part))), `${grouped(counts[i]!)}: ${share(i)}`].map((text) => made('td', {}, text)))));
    history.replaceState(null, '', link('latency', { at: slider.value }));
  }

  function bars(points: (typeof rows)[number]['points'], from: number, label: string): SVGSVGElement {
    return drawing({ 'aria-label': label }, (wide) => {
      const x = (ns: number) => LEFT + (Math.log2(ns) - low) / (high - low) * (wide - LEFT);
      const width = (ns: number) => Math.max(x(ns + 2 ** Math.floor(Math.log2(ns)) / 4) - x(ns) - 1, 1);
      return [HIGH + FOOT, [
        ...points.map(([ns, count]) => svg('rect', { class: ns >= from ? 'slow' : '', x: x(ns), y: HIGH - y(count), width: width(ns), height: y(count) },
          svg('title', {}, `${said(ns)}: ${grouped(count)}`))),
        ...DECADES.filter((ns) => Math.log2(ns) > low && Math.log2(ns) < high - 1.5).map((ns) => svg('text', { x: x(ns), y: HIGH + 14 }, said(ns))),
        ...[1, 1000, 1e6].filter((count) => count <= most).flatMap((count) => [
          svg('text', { class: 'count', x: LEFT - 6, y: Math.max(HIGH - y(count) + 4, 10) }, grouped(count)),
          svg('path', { d: `M${LEFT} ${HIGH - y(count)}H${wide}` })]),
      ]];
    });
  }

  slider.oninput = draw;
  root.replaceChildren(made('section', {}, made('h2', {}, 'How long allocations take'),
    made('p', { className: 'what' }, 'A median says little of an allocator: a frame or a request waits for the slowest. Each picture is of all allocations of one allocator, by the time that they took: to the right the slower ones, upwards how many. Both axes are logarithmic, so that one slow allocation in a million is seen.'),
    made('p', { className: 'what' }, `The load: frames of allocations of 16 to 1,024 bytes, at random. Each is written to, and timed with its first write; at the end of a frame all are freed. ${counted} allocations of each allocator.`),
    made('p', { className: 'said' }, made('b', {}, 'Recorded natively, not in this page'), `: on ${machine.processor} with ${noun(machine.cpus, 'CPU')}, ${machine.system}, ${machine.libc}, ${machine.compiler}. A page has no clock that is fine enough. Calls in which the system ran something else are left out.`),
    made('div', { className: 'bar' }, made('label', {}, 'at least ', slider), limit), pictures,
    made('div', { className: 'scroll' }, table),
    made('p', { className: 'quiet' }, 'Record your own: ', made('code', {}, `uslab lab latency --seed ${findings.seed} --json=latency.json`), ', then ', made('code', {}, 'uslab page --latency latency.json'), '. ',
      made('code', {}, 'uslab lab latency'), ' alone says why the slow ones were slow.')));
  draw();
  const key = (name: string) => {
    const by = { ArrowLeft: -20, ArrowRight: 20, Home: -1000, End: 1000 }[name];
    if (!by) return false;
    slider.value = String(Number(slider.value) + by);
    draw();
    return true;
  };
  return { view: () => ({ from: at(), rows }), key, leave: () => undefined };
}
