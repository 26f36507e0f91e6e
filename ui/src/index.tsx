// Airflow's UI looks for a global with the name of each app.
import { DeviceCard } from "./card";
import { DevicesPage } from "./devices";
import { PlacementTab } from "./placement";

Object.assign(globalThis, { DeviceCard, Devices: DevicesPage, Placement: PlacementTab });

export default DevicesPage;
