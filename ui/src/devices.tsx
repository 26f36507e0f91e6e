// The page of all devices: map, table, queue, timeline, usage, and one worker.
import { Box, Tabs, Text } from "@chakra-ui/react";

import { Filters, useAddress } from "./filters";
import { count } from "./format";
import { FleetMap } from "./map";
import { Pager, type Schemas, Status } from "./parts";
import { query, usePoll } from "./poll";
import { Queue } from "./queue";
import { DeviceTable } from "./table";
import { TimelineChart } from "./timeline";
import { UsageView } from "./usage";
import { WorkerView } from "./worker";

const VIEWS = ["map", "table", "queue", "timeline", "usage"] as const;
const LIMITS = { queue: 100, table: 100, timeline: 50 };
const MAX_OFFSET = 1_000_000;

const MapView = () => {
  const { filter } = useAddress();
  const { problem, value } = usePoll<Schemas["FleetMap"]>(`map?${query(filter)}`);
  return (
    <>
      <Filters />
      <Status isLoading={value === undefined} problem={problem} />
      {value && <FleetMap map={value} />}
    </>
  );
};

/** The offset in the address; 0 for anything that is no number. */
const useOffset = (): [number, (offset: number) => void] => {
  const { change, parameters } = useAddress();
  const offset = Math.min(MAX_OFFSET, Math.max(0, Math.floor(Number(parameters.get("offset")) || 0)));
  return [offset, (next) => change({ offset: next ? String(next) : undefined })];
};

const TableView = () => {
  const { filter } = useAddress();
  const [offset, setOffset] = useOffset();
  const { problem, value } = usePoll<Schemas["FleetTable"]>(`devices?${query({ ...filter, limit: LIMITS.table, offset })}`);
  return (
    <>
      <Filters />
      <Status isLoading={value === undefined} problem={problem} />
      {value && (
        <>
          <Text mb={2}>{count(value.total, "device")}</Text>
          <DeviceTable devices={value.devices} />
          <Pager limit={LIMITS.table} offset={offset} onChange={setOffset} total={value.total} />
        </>
      )}
    </>
  );
};

const QueueView = () => {
  const [offset, setOffset] = useOffset();
  const { problem, value } = usePoll<Schemas["QueueTable"]>(`queue?${query({ limit: LIMITS.queue, offset })}`);
  return (
    <Box mt={3}>
      <Status isLoading={value === undefined} problem={problem} />
      {value && (
        <>
          <Queue queue={value} />
          <Pager limit={LIMITS.queue} offset={offset} onChange={setOffset} total={value.total} />
        </>
      )}
    </Box>
  );
};

const TimelineView = () => {
  const { filter, parameters } = useAddress();
  const [offset, setOffset] = useOffset();
  const hours = Math.min(168, Math.max(1, Number(parameters.get("hours")) || 6));
  const path = `timeline?${query({ ...filter, hours, limit: LIMITS.timeline, offset })}`;
  const { problem, value } = usePoll<Schemas["Timeline"]>(path);
  return (
    <>
      <Filters />
      <Status isLoading={value === undefined} problem={problem} />
      {value && (
        <>
          <TimelineChart hours={hours} timeline={value} />
          <Pager limit={LIMITS.timeline} offset={offset} onChange={setOffset} total={value.total} />
        </>
      )}
    </>
  );
};

export const DevicesPage = () => {
  const { change, parameters } = useAddress();
  const view = VIEWS.find((name) => name === parameters.get("view")) ?? "map";
  const worker = parameters.get("worker");
  return (
    <Box className="hetero-airflow" maxW="1400px" p={4}>
      {worker ? (
        <WorkerView worker={worker} />
      ) : (
        <>
          <Text as="h2" fontSize="xl" fontWeight="semibold" mb={2}>Devices</Text>
          <Tabs.Root
            lazyMount
            onValueChange={({ value }) => change({ offset: undefined, view: value })}
            unmountOnExit
            value={view}
          >
            <Tabs.List>
              {VIEWS.map((name) => (
                <Tabs.Trigger key={name} value={name}>{name[0]?.toUpperCase() + name.slice(1)}</Tabs.Trigger>
              ))}
            </Tabs.List>
            <Tabs.Content value="map"><MapView /></Tabs.Content>
            <Tabs.Content value="table"><TableView /></Tabs.Content>
            <Tabs.Content value="queue"><QueueView /></Tabs.Content>
            <Tabs.Content value="timeline"><TimelineView /></Tabs.Content>
            <Tabs.Content value="usage"><UsageView /></Tabs.Content>
          </Tabs.Root>
        </>
      )}
    </Box>
  );
};
