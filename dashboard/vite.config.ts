import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Plugin } from 'vite';

/** A module script does not load from file://, and the exported page holds it inline: it is a classic one, at the end. */
function classicScript(): Plugin {
  return {
    name: 'classic-script',
    transformIndexHtml: {
      order: 'post',
      handler(html: string): string {
        const script = /\s*<script type="module"[^>]*src="([^"]+)"[^>]*><\/script>/;
        const source = script.exec(html)?.[1];
        if (source === undefined) return html;
        return html
          .replace(script, '')
          .replace(/<link rel="stylesheet" crossorigin/, '<link rel="stylesheet"')
          .replace(/\s*<\/body>/, `\n    <script src="${source}"></script>\n  </body>`);
      },
    },
  };
}

export default defineConfig({
  base: './',
  plugins: [svelte(), classicScript()],
  build: {
    outDir: '../src/hopyard/web/static',
    emptyOutDir: true,
    assetsDir: '',
    cssCodeSplit: false,
    modulePreload: false,
    target: 'es2022',
    rolldownOptions: {
      output: { format: 'iife', entryFileNames: 'app.js', assetFileNames: 'app[extname]' },
    },
  },
  server: { proxy: { '/api': process.env.HOPYARD_WEB ?? 'http://127.0.0.1:8765' } },
});
