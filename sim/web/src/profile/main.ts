// The page of a heap profile: its stacks as a flame graph, and as a table.

import '../page.css';
import './profile.css';
import { $, grouped, made, noun } from '../draw.ts';
import { all, bytesOf, isIn, tree, type Node, type Stack } from './flame.ts';

const { title, stacks } = JSON.parse($('profile').textContent) as { title: string; stacks: Stack[] };
const root = tree(stacks);
const nodes = [...all(root)];
let chosen = root;
let find = '';
const bars = new Map<Node, HTMLButtonElement>();
const rows = Math.max(...nodes.map(({ depth }) => depth)) + 1;
/** Bars below this part of the width are not drawn. */
const LEAST = 1 / 4000;

const share = (bytes: number): string => `${((100 * bytes) / (root.bytes || 1)).toFixed(1)} %`;
const matches = ({ name }: Node): boolean => find !== '' && name.toLowerCase().includes(find);
const told = (node: Node): string => `${node.name}: ${noun(node.bytes, 'byte')}, ${share(node.bytes)}`;

function draw(): void {
  bars.clear();
  const shown = nodes.filter((node) => (isIn(node, chosen) || isIn(chosen, node)) && node.bytes >= LEAST * chosen.bytes);
  $('flame').style.setProperty('--rows', String(rows));
  $('flame').replaceChildren(...shown.map((node) => {
    const bar = made('button', { type: 'button', className: 'bar-of', title: told(node), onclick: () => choose(node) }, node.name);
    const outer = isIn(chosen, node);
    bar.style.setProperty('--row', String(node.depth));
    bar.style.setProperty('--left', outer ? '0' : String((node.at - chosen.at) / (chosen.bytes || 1)));
    bar.style.setProperty('--width', outer ? '1' : String(node.bytes / (chosen.bytes || 1)));
    bar.classList.toggle('outer', outer && node !== chosen);
    bar.classList.toggle('cache', node.depth === 1);
    bar.classList.toggle('matches', matches(node));
    if (node === chosen) bar.ariaCurrent = 'true';
    bars.set(node, bar);
    return bar;
  }));
  $('said').textContent = told(chosen);
  const found = find && bytesOf(root, matches);
  $('found').textContent = find ? `${noun(found || 0, 'byte')}, ${share(found || 0)}` : '';
}

function choose(node: Node): void {
  chosen = node;
  draw();
  bars.get(node)?.focus();
}

/** Each function once: with what it called, and by itself. */
function table(): HTMLElement[] {
  const names = new Set(nodes.filter(({ depth }) => depth > 1).map(({ name }) => name));
  const own = new Map<string, number>();
  for (const { frames, bytes } of stacks) {
    const inner = frames.length > 1 ? frames.at(-1)! : '';
    own.set(inner, (own.get(inner) ?? 0) + bytes);
  }
  const lines = [...names].map((name) => ({ name, sum: bytesOf(root, (node) => node.depth > 1 && node.name === name), own: own.get(name) ?? 0 }));
  lines.sort((a, b) => b.sum - a.sum || b.own - a.own);
  return [
    made('thead', {}, made('tr', {}, ...['function', 'bytes', 'of all', 'by itself'].map((head) => made('th', { scope: 'col' }, head)))),
    made('tbody', {}, ...lines.map(({ name, sum, own }) => made('tr', {},
      made('th', { scope: 'row' }, name), made('td', {}, grouped(sum)), made('td', {}, share(sum)), made('td', {}, grouped(own))))),
  ];
}

$('title').textContent = `${title}; ${noun(root.bytes, 'byte')} in ${noun(stacks.length, 'stack')}`;
document.title = `uslab flame: ${title}`;
$('table').replaceChildren(...table());
$('all').onclick = () => choose(root);
$<HTMLInputElement>('find').oninput = (event) => {
  find = (event.target as HTMLInputElement).value.trim().toLowerCase();
  draw();
};
addEventListener('keydown', ({ key }) => { if (key === 'Escape') choose(root); });
draw();

/** For tests and consoles. */
Object.assign(window, { uslab: { ready: Promise.resolve(), view: () => ({ chosen: chosen.name, bytes: chosen.bytes, bars: bars.size }) } });
