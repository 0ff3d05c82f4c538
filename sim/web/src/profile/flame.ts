// Stacks as a tree: what each function holds, by itself and by what it called.

/** As `uslab flame` writes it: the outermost frame first. */
export interface Stack {
  frames: string[];
  bytes: number;
}

export interface Node {
  name: string;
  bytes: number;
  /** Where it begins: bytes of what lies left of it. */
  at: number;
  depth: number;
  parent: Node | undefined;
  below: Node[];
}

/** The largest first, so that a picture of it is the same each time. */
export function tree(stacks: readonly Stack[]): Node {
  const root: Node = { name: 'all', bytes: 0, at: 0, depth: 0, parent: undefined, below: [] };
  for (const { frames, bytes } of stacks) {
    let node = root;
    node.bytes += bytes;
    for (const name of frames) {
      let next = node.below.find((below) => below.name === name);
      if (!next) {
        next = { name, bytes: 0, at: 0, depth: node.depth + 1, parent: node, below: [] };
        node.below.push(next);
      }
      next.bytes += bytes;
      node = next;
    }
  }
  place(root);
  return root;
}

function place(node: Node): void {
  node.below.sort((a, b) => b.bytes - a.bytes || (a.name < b.name ? -1 : 1));
  let at = node.at;
  for (const below of node.below) {
    below.at = at;
    at += below.bytes;
    place(below);
  }
}

export function* all(node: Node): Generator<Node> {
  yield node;
  for (const below of node.below) yield* all(below);
}

export const isIn = (node: Node, outer: Node): boolean => node === outer || (node.parent !== undefined && isIn(node.parent, outer));

/** Bytes of what matches, each once: a function that calls itself is counted where it is outermost. */
export function bytesOf(node: Node, matches: (node: Node) => boolean): number {
  return matches(node) ? node.bytes : node.below.reduce((sum, below) => sum + bytesOf(below, matches), 0);
}
