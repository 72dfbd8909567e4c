# Writes a source file that holds launch/models/*.json as strings: the program then needs no file beside it.
# cmake -DOUTPUT=presets.cpp -DFOLDER=launch/models "-DNAMES=a,b,c" -P embed_presets.cmake
string(REPLACE "," ";" NAMES "${NAMES}")
set(rows "")
foreach(name IN LISTS NAMES)
  file(READ "${FOLDER}/${name}.json" json)
  string(APPEND rows "    {\"${name}\", R\"json(${json})json\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Generated from launch/models by embed_presets.cmake.
#include \"presets.h\"

namespace cuboid {
namespace {
constexpr EmbeddedConfig kConfigs[] = {
${rows}};
}  // namespace

std::span<const EmbeddedConfig> embedded_configs() { return kConfigs; }

}  // namespace cuboid
")
