// The command line as a function, for programs that bring models, operations or schedules of their own: they register
// them (register_model, register_schedule), call this, and have every command of `cuboid`.
#pragma once

namespace cuboid {

/// Runs `cuboid COMMAND [flags]`. Prints results on standard output, messages on standard error. @return exit status
int run_program(int argc, char** argv);

}  // namespace cuboid
