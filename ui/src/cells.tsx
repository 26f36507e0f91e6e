// The devices of a worker as one picture. Each state has a shape of its own, so nobody needs the colours.
import { memo } from "react";

import { count } from "./format";
import { type DeviceState, type Schemas, STATES } from "./parts";

const SIZE = 14;
const GAP = 4;
const PER_ROW = 8;
const STEP = SIZE + GAP;

const box = (x: number, y: number): string => `M${x} ${y}h${SIZE}v${SIZE}h${-SIZE}z`;

const SHAPES: Record<DeviceState, (x: number, y: number) => string> = {
  free: (x, y) => box(x, y) + `M${x + 2} ${y + 2}v${SIZE - 4}h${SIZE - 4}v${4 - SIZE}z`,
  leased: box,
  partly: (x, y) => box(x, y) + `M${x + 2} ${y + 2}v${SIZE / 2 - 2}h${SIZE - 4}v${2 - SIZE / 2}z`,
  idle: (x, y) => box(x, y) + `M${x + 5} ${y + 5}v4h4v-4z`,
  held: (x, y) =>
    `M${x} ${y}h4l${SIZE - 4} ${SIZE - 4}v4h-4l${4 - SIZE} ${4 - SIZE}zM${x + 8} ${y}h6v6zM${x} ${y + 8}l6 6h-6z`,
  faulty: (x, y) =>
    `M${x} ${y}h4l3 4l3 -4h4l-5 7l5 7h-4l-3 -4l-3 4h-4l5 -7z`,
  divided: (x, y) => `M${x} ${y}h6v6h-6zM${x + 8} ${y}h6v6h-6zM${x} ${y + 8}h6v6h-6zM${x + 8} ${y + 8}h6v6h-6z`,
};

const colour = (state: DeviceState): string => `var(--chakra-colors-${STATES[state].colour}-solid, currentColor)`;

/** The picture of one state, for the legend. */
export const StateShape = ({ state }: { state: DeviceState }) => (
  <svg aria-hidden="true" height={SIZE} viewBox={`0 0 ${SIZE} ${SIZE}`} width={SIZE}>
    <path d={SHAPES[state](0, 0)} fill={colour(state)} />
  </svg>
);

/** What the picture shows, in words. */
export const inWords = (groups: Schemas["DeviceGroup"][]): string =>
  groups
    .map((group) => `${count(group.devices, "device")} ${group.name} ${STATES[group.state].label.toLowerCase()}${group.simulated ? ", simulated" : ""}`)
    .join("; ");

const Cells = ({ groups }: { groups: Schemas["DeviceGroup"][] }) => {
  const paths = new Map<DeviceState, string>();
  let simulated = "";
  let number = 0;
  for (const group of groups) {
    for (let device = 0; device < group.devices; device += 1, number += 1) {
      const x = (number % PER_ROW) * STEP + 2;
      const y = Math.floor(number / PER_ROW) * STEP + 2;
      paths.set(group.state, (paths.get(group.state) ?? "") + SHAPES[group.state](x, y));
      if (group.simulated) simulated += `M${x - 2} ${y - 2}h${STEP}v${STEP}h${-STEP}z`;
    }
  }
  const width = Math.min(number, PER_ROW) * STEP + 4;
  const height = Math.ceil(number / PER_ROW) * STEP + 4;
  const words = inWords(groups);
  return (
    <svg aria-label={words} height={height} role="img" viewBox={`0 0 ${width} ${height}`} width={width}>
      <title>{words}</title>
      {[...paths].map(([state, path]) => (
        <path d={path} fill={colour(state)} fillRule="evenodd" key={state} />
      ))}
      {simulated && (
        <path d={simulated} fill="none" stroke="var(--chakra-colors-fg-muted, currentColor)" strokeDasharray="2 2" />
      )}
    </svg>
  );
};

/** Drawn again only if a device changes. */
export const DeviceCells = memo(Cells, (before, after) => JSON.stringify(before) === JSON.stringify(after));
