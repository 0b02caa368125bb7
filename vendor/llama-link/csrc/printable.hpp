#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

// Escapes characters that control a terminal, as `build_info::words::printable_lines` does: control characters except
// line feeds and tabs, and bidirectional formatting characters. Bytes that are not UTF-8 become U+FFFD, because a
// terminal may read them as 8-bit control characters. llama.cpp's messages contain names from model files.
inline std::string printable(const std::string & text) {
    std::string shown;
    for (size_t at = 0; at < text.size(); ++at) {
        const auto byte = [&](size_t more) -> uint32_t {
            return at + more < text.size() ? (unsigned char) text[at + more] : 0;
        };
        uint32_t escaped = 0;
        size_t   length  = 1;
        if ((byte(0) < 0x20 && byte(0) != '\n' && byte(0) != '\t') || byte(0) == 0x7f) {
            escaped = byte(0);
        } else if (byte(0) == 0xc2 && byte(1) >= 0x80 && byte(1) < 0xa0) {
            escaped = byte(1);
            length  = 2;
        } else if (byte(0) == 0xe2 && ((byte(1) == 0x80 && byte(2) >= 0xaa && byte(2) <= 0xae) ||
                                       (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9))) {
            escaped = 0x2000 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
            length  = 3;
        } else {
            const uint32_t lead  = byte(0);
            const size_t   whole = lead < 0x80 ? 1 : lead < 0xc2 || lead > 0xf4 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
            size_t valid = whole > 0;
            while (valid > 0 && valid < whole && (byte(valid) & 0xc0) == 0x80) {
                ++valid;
            }
            if (whole == 0 || valid < whole) {
                shown += "\xef\xbf\xbd";
                continue;
            }
            shown.append(text, at, whole);
            at += whole - 1;
            continue;
        }
        char buffer[16];
        std::snprintf(buffer, sizeof(buffer), "\\u{%x}", escaped);
        shown += buffer;
        at += length - 1;
    }
    return shown;
}
