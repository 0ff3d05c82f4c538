// A build for each page, `--mode NAME` of NAME.html, as one file; and one of what tests run in node, `--mode travel`. `.ci/web` calls them.
import { defineConfig, type Plugin } from 'vite';

/** Puts scripts and styles into the page, which then asks for nothing. */
const oneFile = (name: string): Plugin => ({
  name: 'one-file',
  enforce: 'post',
  generateBundle(_, bundle) {
    const page = bundle[name];
    if (page?.type !== 'asset') throw new Error(`there is no ${name}`);
    let html = String(page.source);
    for (const [file, part] of Object.entries(bundle)) {
      if (part === page) continue;
      const tag = part.type === 'chunk' ? 'script' : 'style';
      const text = part.type === 'chunk' ? part.code : String(part.source);
      const asked = new RegExp(`<(script|link)[^>]*"[^"]*${file}"[^>]*>(</script>)?`);
      if (!asked.test(html)) throw new Error(`the page does not ask for ${file}`);
      html = html.replace(asked, () => `<${tag}${tag === 'script' ? ' type="module"' : ''}>\n${text.trim()}\n</${tag}>`);
      delete bundle[file];
    }
    page.source = html;
  },
});

export default defineConfig(({ mode }) => ({
  base: './',
  plugins: mode === 'travel' ? [] : [oneFile(`${mode}.html`)],
  build: {
    outDir: 'built',
    emptyOutDir: false,
    target: 'es2023',
    minify: true,
    modulePreload: false,
    ...(mode === 'travel' ? { lib: { entry: 'src/replay/travel.ts', formats: ['es'], fileName: 'travel' } }
      : { rolldownOptions: { input: `${mode}.html` } }),
  },
}));
