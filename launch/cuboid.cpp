#include "cuboid/launch/program.h"

int main(int argc, char** argv) {
  return cuboid::run_program(argc, argv);
}
