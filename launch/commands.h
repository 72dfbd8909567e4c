// The commands of `cuboid`, one file each. A command gets the words after its name, prints its result on standard
// output and returns the process's exit status; faults of the request are thrown as Error.
#pragma once

#include <string>
#include <vector>

namespace cuboid::launch {

using Arguments = std::vector<std::string>;

int bench_command(const Arguments& arguments);
int checkpoint_command(const Arguments& arguments);
int train_command(const Arguments& arguments);
int plan_command(const Arguments& arguments);
int launch_command(const Arguments& arguments);
int doctor_command(const Arguments& arguments);
int data_command(const Arguments& arguments);
int models_command(const Arguments& arguments);
int simulate_command(const Arguments& arguments);
int schedule_command(const Arguments& arguments);
int sample_command(const Arguments& arguments);
int topo_command(const Arguments& arguments);

}  // namespace cuboid::launch
