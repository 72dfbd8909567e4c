// Every command of `cuboid`, with one model and one schedule more.
#include <cuboid/launch/program.h>
#include <cuboid/models/registry.h>
#include <cuboid/parallel/pipeline/generators.h>

#include "parallel_alibi.h"
#include "waves.h"

int main(int argc, char** argv) {
  cuboid::register_model(example::make_parallel_alibi(), example::parallel_alibi_configuration());
  cuboid::register_schedule("waves", 1, example::waves_row);
  return cuboid::run_program(argc, argv);
}
