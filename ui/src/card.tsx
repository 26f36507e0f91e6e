// The card on the dashboard: free devices, waiting tasks, trouble.
import { Box, Flex, Text } from "@chakra-ui/react";
import { Link as RouterLink } from "react-router-dom";

import { count } from "./format";
import type { Schemas } from "./parts";
import { usePoll } from "./poll";

const PERIOD_MS = 10_000;

export const DeviceCard = () => {
  const { problem, value: fleet } = usePoll<Schemas["FleetSummary"]>("summary", PERIOD_MS);
  const { value: queue } = usePoll<Schemas["QueueTable"]>("queue?limit=1", PERIOD_MS);
  if (problem !== undefined || fleet === undefined) return null;
  const trouble = (fleet.states.faulty ?? 0) + (fleet.states.held ?? 0);
  const waiting = (queue?.total ?? 0) + (queue?.hidden ?? 0);
  const page = (view: string): string => `/plugin/hetero-devices?view=${view}`;
  return (
    <Box borderRadius="md" borderWidth={1} className="hetero-airflow" my={2} p={4}>
      <Text as="h2" fontWeight="semibold" mb={1}>Devices</Text>
      <Flex gap={5} wrap="wrap">
        <RouterLink style={{ textDecoration: "underline" }} to={page("map")}>
          {fleet.states.free ?? 0} of {count(fleet.devices, "device")} free
        </RouterLink>
        <RouterLink style={{ textDecoration: "underline" }} to={page("queue")}>{count(waiting, "task")} waiting</RouterLink>
        {trouble > 0 && <Text fontWeight="medium">{count(trouble, "device")} faulty or on hold</Text>}
      </Flex>
    </Box>
  );
};
