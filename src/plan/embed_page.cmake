# Writes a source file that holds the report's page as a string: the program then needs no file beside it.
# cmake -DINPUT=report.html -DOUTPUT=report_page.cpp -P embed_page.cmake
file(READ "${INPUT}" text)
file(WRITE "${OUTPUT}" "// Generated from report.html by embed_page.cmake.
#include \"report_page.h\"

namespace cuboid::plan {

const char* const kReportPage = R\"page(${text})page\";

}  // namespace cuboid::plan
")
