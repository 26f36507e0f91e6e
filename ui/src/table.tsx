// The devices as rows.
import { Badge, Button, Table, Text } from "@chakra-ui/react";

import { useAddress } from "./filters";
import { bytes, percent } from "./format";
import { Columns, type Schemas, Scroller, StateBadge, TaskName } from "./parts";

const HEADERS = ["Worker", "Device", "Model", "State", "Leased", "Utilisation", "Memory", "Temperature", "Power", "Held by"];

const unknown = <Text as="span" color="fg.muted">-</Text>;

const memory = (row: Schemas["FleetDevice"]): string => {
  if (row.memory_bytes === null) return "unknown";
  const size = bytes(row.memory_bytes) + (row.is_host_memory ? " (the host's)" : "");
  return row.memory_free_bytes === null ? size : `${bytes(row.memory_bytes - row.memory_free_bytes)} of ${size}`;
};

export const DeviceTable = ({ devices }: { devices: Schemas["FleetDevice"][] }) => {
  const { change } = useAddress();
  return (
    <Scroller label="Devices">
      <Table.Root minW="980px" size="sm">
        <Columns names={HEADERS} />
        <Table.Body>
          {devices.map((row) => (
            <Table.Row key={`${row.worker}/${row.device}`}>
              <Table.Cell>
                <Button onClick={() => change({ worker: row.worker })} size="xs" variant="plain" px={0} textDecoration="underline">
                  {row.worker}
                </Button>
              </Table.Cell>
              <Table.Cell maxW="180px" overflowWrap="anywhere" whiteSpace="normal">{row.device}</Table.Cell>
              <Table.Cell>
                {row.name} {row.simulated && <Badge variant="outline">simulated</Badge>}
              </Table.Cell>
              <Table.Cell>
                <StateBadge state={row.state} />
                {row.problem && (
                  <Text fontSize="xs" maxW="260px" overflowWrap="anywhere" whiteSpace="normal">{row.problem}</Text>
                )}
              </Table.Cell>
              <Table.Cell>{percent(row.leased)}</Table.Cell>
              <Table.Cell>{row.utilization === null ? unknown : percent(row.utilization)}</Table.Cell>
              <Table.Cell>{memory(row)}</Table.Cell>
              <Table.Cell>{row.temperature_c === null ? unknown : `${Math.round(row.temperature_c)} °C`}</Table.Cell>
              <Table.Cell>{row.power_w === null ? unknown : `${Math.round(row.power_w)} W`}</Table.Cell>
              <Table.Cell>
                {row.holders.map((task, number) => (
                  <div key={number}><TaskName task={task} /></div>
                ))}
              </Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Scroller>
  );
};
