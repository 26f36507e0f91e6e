// Live leases as rows.
import { Table } from "@chakra-ui/react";

import { ago, clock } from "./format";
import { Columns, type Schemas, Scroller, TaskName } from "./parts";

export const LeaseTable = ({ label, leases }: { label: string; leases: Schemas["LeaseRow"][] }) => (
  <Scroller label={label}>
    <Table.Root minW="640px" size="sm">
      <Columns names={["Task", "Worker", "Devices", "State", "Since", "Probably until"]} />
      <Table.Body>
        {leases.map((lease) => (
          <Table.Row key={`${lease.worker}/${lease.devices.join()}/${lease.granted_at}`}>
            <Table.Cell><TaskName task={lease.task} /></Table.Cell>
            <Table.Cell>{lease.worker}</Table.Cell>
            <Table.Cell>{lease.devices.join(", ")}</Table.Cell>
            <Table.Cell>{lease.state}</Table.Cell>
            <Table.Cell>{ago(lease.granted_at)}</Table.Cell>
            <Table.Cell>{lease.likely_end ? clock(lease.likely_end) : "unknown"}</Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Scroller>
);
