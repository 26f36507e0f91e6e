// Bundles the page. Airflow's UI gives React, Chakra and the router as globals, so they are not in the bundle.
import { build } from "esbuild";

const HOST = {
  react: "React",
  "react/jsx-runtime": "ReactJSXRuntime",
  "react-router-dom": "ReactRouterDOM",
  "@chakra-ui/react": "ChakraUI",
};

const fromHost = {
  name: "from-host",
  setup(plugins) {
    const filter = new RegExp(`^(${Object.keys(HOST).join("|")})$`);
    plugins.onResolve({ filter }, ({ path }) => ({ path, namespace: "host" }));
    plugins.onLoad({ filter: /.*/, namespace: "host" }, ({ path }) => ({
      contents: `module.exports = globalThis.${HOST[path]};`,
    }));
  },
};

await build({
  entryPoints: ["src/index.tsx"],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  charset: "ascii",
  legalComments: "none",
  plugins: [fromHost],
  outfile: process.argv[2] ?? "../hetero_airflow/web/static/hetero.js",
});
