// Two builds, as `.ci/web` calls them: the page as one file, and what tests run in node (`--mode travel`).
import { defineConfig, type Plugin } from 'vite';

/** Puts scripts and styles into the page, which then asks for nothing. */
const oneFile: Plugin = {
  name: 'one-file',
  enforce: 'post',
  generateBundle(_, bundle) {
    const page = bundle['index.html'];
    if (page?.type !== 'asset') throw new Error('there is no index.html');
    let html = String(page.source);
    for (const [name, part] of Object.entries(bundle)) {
      if (part === page) continue;
      const tag = part.type === 'chunk' ? 'script' : 'style';
      const text = part.type === 'chunk' ? part.code : String(part.source);
      const asked = new RegExp(`<(script|link)[^>]*"[^"]*${name}"[^>]*>(</script>)?`);
      if (!asked.test(html)) throw new Error(`the page does not ask for ${name}`);
      html = html.replace(asked, () => `<${tag}${tag === 'script' ? ' type="module"' : ''}>\n${text.trim()}\n</${tag}>`);
      delete bundle[name];
    }
    page.source = html;
    page.fileName = 'page.html';
  },
};

export default defineConfig(({ mode }) => ({
  base: './',
  plugins: mode === 'travel' ? [] : [oneFile],
  build: {
    outDir: 'built',
    emptyOutDir: false,
    target: 'es2023',
    minify: false, // it is committed, and read
    modulePreload: false,
    ...(mode === 'travel' && { lib: { entry: 'src/travel.ts', formats: ['es'], fileName: 'travel' } }),
  },
}));
