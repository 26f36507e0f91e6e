// A tile per worker, a cell per device.
import { Box, Flex, Text } from "@chakra-ui/react";
import { memo } from "react";

import { DeviceCells, StateShape } from "./cells";
import { useAddress } from "./filters";
import { count } from "./format";
import { type DeviceState, type Schemas, STATES } from "./parts";

type Tile = Schemas["WorkerTile"];

const WorkerTile = memo(
  ({ onOpen, tile }: { onOpen: (worker: string) => void; tile: Tile }) => (
    <Box
      as="button"
      borderRadius="md"
      borderStyle={tile.state === "lost" ? "dashed" : "solid"}
      borderWidth={1}
      css={{ contentVisibility: "auto", containIntrinsicSize: "170px 70px" }}
      onClick={() => onOpen(tile.worker)}
      p={2}
      textAlign="left"
      width="170px"
    >
      <Text fontSize="xs" fontWeight="medium" lineClamp={1} title={tile.worker}>
        {tile.worker}
      </Text>
      <Text color="fg.muted" fontSize="xs" lineClamp={1}>
        {[tile.state === "lost" ? "lost" : "", tile.groups.some((group) => group.simulated) ? "simulated" : tile.engine, tile.site, tile.rack]
          .filter(Boolean)
          .join(" · ")}
      </Text>
      <DeviceCells groups={tile.groups} />
    </Box>
  ),
  (before, after) => JSON.stringify(before.tile) === JSON.stringify(after.tile),
);

export const FleetMap = ({ map }: { map: Schemas["FleetMap"] }) => {
  const { change } = useAddress();
  return (
    <>
      <Flex aria-label="Legend" as="ul" gap={4} listStyleType="none" mb={3} wrap="wrap">
        {(Object.keys(STATES) as DeviceState[])
          .filter((state) => map.states[state])
          .map((state) => (
            <Flex align="center" as="li" fontSize="sm" gap={1} key={state} title={STATES[state].meaning}>
              <StateShape state={state} /> {map.states[state]?.toLocaleString()} {STATES[state].label.toLowerCase()}
            </Flex>
          ))}
      </Flex>
      <Flex align="stretch" gap={2} wrap="wrap">
        {map.tiles.map((tile) => (
          <WorkerTile key={tile.worker} onOpen={(worker) => change({ worker })} tile={tile} />
        ))}
      </Flex>
      {map.tiles.length === 0 && <Text color="fg.muted">No worker matches. Clear the filters, or start a worker.</Text>}
      {map.workers > map.tiles.length && (
        <Text mt={3}>The map shows the first {map.tiles.length.toLocaleString()} of {count(map.workers, "worker")}. Use the filters.</Text>
      )}
    </>
  );
};
