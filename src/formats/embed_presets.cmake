# Writes a source file that holds text files as strings: the program then needs no file beside it.
# cmake -DOUTPUT=models.cpp -DFUNCTION=embedded_configs -DFOLDER=launch/models -DEXTENSION=json "-DNAMES=a,b,c"
#       -P embed_presets.cmake
string(REPLACE "," ";" NAMES "${NAMES}")
set(rows "")
foreach(name IN LISTS NAMES)
  file(READ "${FOLDER}/${name}.${EXTENSION}" text)
  # A raw string holds at most 64 KiB; presets are far below.
  string(APPEND rows "    {\"${name}\", R\"preset(${text})preset\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Generated from ${FOLDER} by embed_presets.cmake.
#include \"presets.h\"

namespace cuboid {
namespace {
constexpr EmbeddedConfig kPresets[] = {
${rows}};
}  // namespace

std::span<const EmbeddedConfig> ${FUNCTION}() { return kPresets; }

}  // namespace cuboid
")
