// What the program tells a person: one line a message on standard error, "cuboid: warning: …".
#pragma once

#include <string_view>

namespace cuboid::log {

/// Facts the user asked nothing about but wants to know (what was chosen and why). Silenced by set_quiet.
void info(std::string_view message);
/// Something is probably not what the user meant; the run goes on.
void warning(std::string_view message);
/// The reason why the program ends.
void error(std::string_view message);
/// Silences info (not warnings or errors).
void set_quiet(bool quiet);
/// Called before and after each line, so that a progress bar can clear and redraw itself. Null: none.
void set_interrupt(void (*before)(), void (*after)());

}  // namespace cuboid::log
